/* Loads an artifact and runs it once, from C:
 *
 *     run MODEL.aot [NAME=VALUE ...] [NAME@FILE ...]
 *
 * NAME=VALUE gives an extent that varies (by default the smallest allowed), NAME@FILE reads an input
 * from a file of raw row-major elements (by default zeros). Prints every input and output.
 *
 *     cc run.c $(pkg-config --cflags --libs aot_runtime) -o run
 */
#include <aot/runtime.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PORTS = 64, MAX_RANK = 16, MAX_SYMBOLS = 64 };

static int fail(const aot_error *error) {
    fprintf(stderr, "error: %s%s%s\n", error->where, *error->where ? ": " : "", error->message);
    if (*error->hint) fprintf(stderr, "hint: %s\n", error->hint);
    return 1;
}

/* The text behind NAME and `mark` among the arguments, or NULL. */
static const char *option(int argc, char **argv, const char *name, char mark) {
    size_t length = strlen(name);
    for (int i = 2; i < argc; ++i) {
        if (strncmp(argv[i], name, length) == 0 && argv[i][length] == mark) return argv[i] + length + 1;
    }
    return NULL;
}

static void print_tensor(const char *name, const char *dtype, const aot_tensor *tensor) {
    int64_t elements = 1;
    printf("%s: %s [", name, dtype);
    for (int axis = 0; axis < tensor->rank; ++axis) {
        printf(axis ? ", %" PRId64 : "%" PRId64, tensor->shape[axis]);
        elements *= tensor->shape[axis];
    }
    printf("]");
    for (int64_t i = 0; i < elements && i < 8; ++i) {
        if (strcmp(dtype, "f32") == 0) printf(" %g", (double)((const float *)tensor->data)[i]);
        else if (strcmp(dtype, "i64") == 0) printf(" %" PRId64, ((const int64_t *)tensor->data)[i]);
        else if (strcmp(dtype, "i32") == 0) printf(" %" PRId32, ((const int32_t *)tensor->data)[i]);
    }
    printf(elements > 8 ? " ...\n" : "\n");
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: %s MODEL.aot [NAME=VALUE ...] [NAME@FILE ...]\n", argv[0]);
        return 2;
    }
    aot_error error = {.struct_size = sizeof error};
    aot_model *model = NULL;
    if (aot_model_load_file(argv[1], NULL, &model, &error)) return fail(&error);

    for (uint32_t i = 0; i < aot_model_program_count(model); ++i) {
        aot_program_info program = {.struct_size = sizeof program};
        aot_model_program(model, i, &program);
        printf("program %s: %u steps%s\n", program.target, program.step_count, program.selected ? ", selected" : "");
    }

    /* Inputs: fixed extents, and those of symbols as the arguments say. */
    const uint32_t inputs = aot_model_input_count(model), outputs = aot_model_output_count(model);
    static int64_t shapes[MAX_PORTS][MAX_RANK];
    aot_tensor tensors[MAX_PORTS] = {0};
    const aot_tensor *pointers[MAX_PORTS];
    if (inputs > MAX_PORTS || outputs > MAX_PORTS) return 2;
    for (uint32_t i = 0; i < inputs; ++i) {
        aot_port_info port = {.struct_size = sizeof port};
        aot_model_input(model, i, &port);
        if (port.rank > MAX_RANK) return 2;
        size_t bytes = port.dtype_bits < 8 ? 1 : port.dtype_bits / 8;
        for (uint32_t axis = 0; axis < port.rank; ++axis) {
            aot_dim_info dim = {.struct_size = sizeof dim};
            aot_model_input_dim(model, i, axis, &dim);
            int64_t extent = dim.value;
            if (extent < 0) {
                const char *value = option(argc, argv, dim.text, '=');
                extent = value ? atoll(value) : 1;
                for (uint32_t s = 0; !value && s < aot_model_symbol_count(model); ++s) {
                    aot_symbol_info symbol = {.struct_size = sizeof symbol};
                    aot_model_symbol(model, s, &symbol);
                    if (strcmp(symbol.name, dim.text) == 0) extent = symbol.lo;
                }
            }
            shapes[i][axis] = extent;
            bytes *= (size_t)extent;
        }
        aot_tensor tensor = {.data = calloc(bytes ? bytes : 1, 1),
                             .device_type = 1,
                             .rank = (int32_t)port.rank,
                             .dtype_code = port.dtype_code,
                             .dtype_bits = port.dtype_bits,
                             .dtype_lanes = port.dtype_lanes,
                             .shape = shapes[i]};
        const char *path = option(argc, argv, port.name, '@');
        FILE *file = path ? fopen(path, "rb") : NULL;
        if (!tensor.data || (path && (!file || fread(tensor.data, 1, bytes, file) != bytes))) {
            fprintf(stderr, "error: cannot read %zu bytes for %s from %s\n", bytes, port.name, path ? path : "");
            return 1;
        }
        if (file) fclose(file);
        tensors[i] = tensor;
        pointers[i] = &tensors[i];
        print_tensor(port.name, port.dtype, &tensor);
    }

    aot_session *session = NULL;
    if (aot_session_create(model, NULL, &session, &error)) return fail(&error);
    if (aot_session_run(session, pointers, inputs, NULL, 0, NULL, &error)) return fail(&error);
    for (uint32_t i = 0; i < outputs; ++i) {
        aot_port_info port = {.struct_size = sizeof port};
        aot_tensor result;
        aot_model_output(model, i, &port);
        if (aot_session_output(session, i, &result) == AOT_OK) print_tensor(port.name, port.dtype, &result);
    }

    aot_session_destroy(session);
    aot_model_unload(model);
    for (uint32_t i = 0; i < inputs; ++i) free(tensors[i].data);
    return 0;
}

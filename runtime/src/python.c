/* The short way through a call from Python: numpy arrays in, new numpy arrays out, with no Python code between.
 *
 * It succeeds or declines (None). Whatever is unusual or fails goes again through aot/runtime/_model.py, which needs
 * only ctypes, accepts every kind of array and words the errors; so this module may be missing, and knows no messages.
 * Stable ABI of Python 3.11; the library is reached through addresses that ctypes found, not by linking.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>
#include <string.h>

#include "aot/runtime.h"

enum { MOST_PORTS = 32 };

typedef struct {
    PyObject_HEAD
    int32_t (*prepare)(aot_session *, const aot_tensor *const *, uint32_t, aot_error *);
    int32_t (*run)(aot_session *, const aot_tensor *const *, uint32_t, const aot_tensor *const *, uint32_t,
                   const aot_run_options *, aot_error *);
    int32_t (*output)(const aot_session *, uint32_t, aot_tensor *);
    PyObject *array_type; /* numpy.ndarray */
    PyObject *empty;      /* numpy.empty */
    PyObject *inputs;     /* tuple of names */
    PyObject *outputs;    /* tuple of names */
    PyObject *dtypes;     /* tuple, of the outputs */
} Caller;

static int describe(PyObject *array, Py_buffer *buffer, aot_tensor *tensor) {
    if (PyObject_GetBuffer(array, buffer, PyBUF_ND | PyBUF_FORMAT) != 0) return 0;
    uint8_t code;
    switch (buffer->format && !buffer->format[1] ? buffer->format[0] : 0) {
        case '?': code = 6; break;
        case 'e': case 'f': case 'd': code = 2; break;
        case 'b': case 'h': case 'i': case 'l': case 'q': code = 0; break;
        case 'B': case 'H': case 'I': case 'L': case 'Q': code = 1; break;
        default: PyBuffer_Release(buffer); return 0;
    }
    *tensor = (aot_tensor){buffer->buf, 1, 0, buffer->ndim, code, (uint8_t)(buffer->itemsize * 8), 1,
                           (const int64_t *)buffer->shape, NULL, 0};
    return 1;
}

static PyObject *new_array(const Caller *self, Py_ssize_t index, const aot_tensor *tensor) {
    PyObject *shape = PyTuple_New(tensor->rank), *array = NULL;
    if (!shape) return NULL;
    for (int32_t axis = 0; axis < tensor->rank; axis++) {
        PyObject *extent = PyLong_FromLongLong(tensor->shape[axis]);
        if (!extent || PyTuple_SetItem(shape, axis, extent) != 0) goto done;
    }
    array = PyObject_CallFunctionObjArgs(self->empty, shape, PyTuple_GetItem(self->dtypes, index), NULL);
done:
    Py_DECREF(shape);
    return array;
}

/* Runs, and puts the results into the list; 0 where it declines. `given` are borrowed references. */
static int run_arrays(const Caller *self, aot_session *session, PyObject *const *given, PyObject **results) {
    const Py_ssize_t input_count = PyTuple_Size(self->inputs), output_count = PyTuple_Size(self->outputs);
    Py_buffer buffers[2 * MOST_PORTS];
    aot_tensor tensors[2 * MOST_PORTS];
    const aot_tensor *inputs[MOST_PORTS], *outputs[MOST_PORTS];
    Py_ssize_t held = 0;
    int done = 0;
    for (Py_ssize_t i = 0; i < input_count; i++, held++) {
        if ((PyObject *)Py_TYPE(given[i]) != self->array_type || !describe(given[i], &buffers[held], &tensors[held])) {
            goto release;
        }
        inputs[i] = &tensors[held];
    }
    int32_t status;
    Py_BEGIN_ALLOW_THREADS
    status = self->prepare(session, inputs, (uint32_t)input_count, NULL);
    Py_END_ALLOW_THREADS
    if (status != AOT_OK) goto release;
    for (Py_ssize_t i = 0; i < output_count; i++) {
        aot_tensor expected;
        outputs[i] = NULL;
        if (self->output(session, (uint32_t)i, &expected) != AOT_OK) continue; /* its shape is known after the run */
        results[i] = new_array(self, i, &expected);
        if (!results[i] || !describe(results[i], &buffers[held], &tensors[held])) goto release;
        outputs[i] = &tensors[held++];
    }
    Py_BEGIN_ALLOW_THREADS
    status = self->run(session, inputs, (uint32_t)input_count, outputs, (uint32_t)output_count, NULL, NULL);
    Py_END_ALLOW_THREADS
    if (status != AOT_OK) goto release;
    for (Py_ssize_t i = 0; i < output_count; i++) {
        if (outputs[i]) continue;
        aot_tensor found;
        if (self->output(session, (uint32_t)i, &found) != AOT_OK) goto release;
        results[i] = new_array(self, i, &found);
        if (!results[i] || !describe(results[i], &buffers[held], &tensors[held])) goto release;
        if (buffers[held].len) memcpy(buffers[held].buf, (const char *)found.data + found.byte_offset, (size_t)buffers[held].len);
        held++;
    }
    done = 1;
release:
    while (held > 0) PyBuffer_Release(&buffers[--held]);
    return done;
}

/* run(session, inputs): inputs is a dict by name, for a dict of results, or a tuple in order, for a tuple of results. */
static PyObject *caller_run(PyObject *self_object, PyObject *const *arguments, Py_ssize_t count) {
    const Caller *self = (const Caller *)self_object;
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "expected a session and inputs");
        return NULL;
    }
    void *session = PyLong_AsVoidPtr(arguments[0]);
    if (!session) return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    PyObject *inputs = arguments[1];
    const int named = PyDict_CheckExact(inputs);
    const Py_ssize_t input_count = PyTuple_Size(self->inputs), output_count = PyTuple_Size(self->outputs);
    if ((named ? PyDict_Size(inputs) : PyTuple_CheckExact(inputs) ? PyTuple_Size(inputs) : -1) != input_count) {
        return Py_NewRef(Py_None);
    }
    PyObject *given[MOST_PORTS] = {NULL}, *results[MOST_PORTS] = {NULL}, *answer = NULL;
    Py_ssize_t taken = 0;
    for (; taken < input_count; taken++) {
        PyObject *array = named ? PyDict_GetItemWithError(inputs, PyTuple_GetItem(self->inputs, taken))
                                : PyTuple_GetItem(inputs, taken);
        if (!array) break;
        given[taken] = Py_NewRef(array); /* another thread may change the dict while the kernels run */
    }
    if (taken == input_count && run_arrays(self, session, given, results)) {
        answer = named ? PyDict_New() : PyTuple_New(output_count);
        for (Py_ssize_t i = 0; answer && i < output_count; i++) {
            const int failed = named ? PyDict_SetItem(answer, PyTuple_GetItem(self->outputs, i), results[i])
                                     : PyTuple_SetItem(answer, i, Py_NewRef(results[i]));
            if (failed) Py_CLEAR(answer);
        }
    }
    while (taken > 0) Py_DECREF(given[--taken]);
    for (Py_ssize_t i = 0; i < output_count; i++) Py_XDECREF(results[i]);
    if (answer) return answer;
    PyErr_Clear();
    return Py_NewRef(Py_None);
}

static PyObject *caller_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    static char *names[] = {"prepare", "run", "output", "array_type", "empty", "inputs", "outputs", "dtypes", NULL};
    unsigned long long prepare, run, output;
    PyObject *array_type, *empty, *inputs, *outputs, *dtypes;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "KKKOOO!O!O!", names, &prepare, &run, &output, &array_type,
                                     &empty, &PyTuple_Type, &inputs, &PyTuple_Type, &outputs, &PyTuple_Type, &dtypes)) {
        return NULL;
    }
    if (PyTuple_Size(inputs) > MOST_PORTS || PyTuple_Size(outputs) > MOST_PORTS ||
        PyTuple_Size(outputs) != PyTuple_Size(dtypes)) {
        PyErr_Format(PyExc_ValueError, "expected at most %d inputs and outputs, and a dtype for each output", MOST_PORTS);
        return NULL;
    }
    Caller *self = (Caller *)PyType_GenericAlloc(type, 0);
    if (!self) return NULL;
    memcpy(&self->prepare, &(uintptr_t){(uintptr_t)prepare}, sizeof self->prepare);
    memcpy(&self->run, &(uintptr_t){(uintptr_t)run}, sizeof self->run);
    memcpy(&self->output, &(uintptr_t){(uintptr_t)output}, sizeof self->output);
    self->array_type = Py_NewRef(array_type);
    self->empty = Py_NewRef(empty);
    self->inputs = Py_NewRef(inputs);
    self->outputs = Py_NewRef(outputs);
    self->dtypes = Py_NewRef(dtypes);
    return (PyObject *)self;
}

static void caller_dealloc(PyObject *object) {
    Caller *self = (Caller *)object;
    PyTypeObject *type = Py_TYPE(object);
    Py_XDECREF(self->array_type);
    Py_XDECREF(self->empty);
    Py_XDECREF(self->inputs);
    Py_XDECREF(self->outputs);
    Py_XDECREF(self->dtypes);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

static PyMethodDef caller_methods[] = {
    {"run", (PyCFunction)(void (*)(void))caller_run, METH_FASTCALL,
     "run(session, inputs): a dict for a dict, a tuple for a tuple; None where the long way must be taken."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot caller_slots[] = {
    {Py_tp_new, caller_new},
    {Py_tp_dealloc, caller_dealloc},
    {Py_tp_methods, caller_methods},
    {0, NULL},
};
static PyType_Spec caller_spec = {"aot_call.Caller", sizeof(Caller), 0, Py_TPFLAGS_DEFAULT, caller_slots};

static int module_exec(PyObject *module) {
    PyObject *type = PyType_FromModuleAndSpec(module, &caller_spec, NULL);
    PyObject *most = PyLong_FromLong(MOST_PORTS);
    const int failed = !type || !most || PyObject_SetAttrString(type, "most_ports", most) != 0 ||
                       PyModule_AddObjectRef(module, "Caller", type) != 0;
    Py_XDECREF(most);
    Py_XDECREF(type);
    return failed ? -1 : 0;
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, module_exec}, {0, NULL}};
static PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT, "aot_call", "The short way through a call of a model.", 0, NULL, module_slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit_aot_call(void) { return PyModuleDef_Init(&module_definition); }

"""Labelled sound: speech with gaps and noise, how good speech sounds, and notes."""

from __future__ import annotations

import io
import wave
from functools import cache

import numpy as np

from benchmarks.labelled_data import (
    Array,
    Maker,
    Outputs,
    Pair,
    Run,
    Sample,
    Store,
    concordance,
    largest_error,
    mean_of_first,
    roc_auc,
    same,
)  # fmt: skip

RATE = 16000


@cache
def _speech(store: Store) -> Array:
    """f32, about 10 s of one voice at 16 kHz."""
    data = store.member("useful-moonshine-onnx", "moonshine_onnx/assets/beckett.wav")
    with wave.open(io.BytesIO(data)) as file:
        return np.frombuffer(file.readframes(file.getnframes()), np.int16).astype(np.float32) / 32768


def _noise(count: int, color: float, random: np.random.Generator) -> Array:
    """f32 noise of mean square 1, whose power falls with frequency to the power `color`."""
    spectrum = np.fft.rfft(random.standard_normal(count))
    spectrum /= np.maximum(np.arange(len(spectrum)), 20) ** (color / 2)
    noise = np.fft.irfft(spectrum, count)
    return (noise / np.sqrt(np.mean(noise**2))).astype(np.float32)


def _power(sound: Array) -> float:
    return float(np.mean(np.square(sound, dtype=np.float64)))


def _mixed(sound: Array, snr_db: float, color: float, random: np.random.Generator) -> Array:
    level = np.sqrt(_power(sound) / 10 ** (snr_db / 10))
    return np.clip(sound + level * _noise(len(sound), color, random), -1, 1).astype(np.float32)


# Voice activity.

FRAME, CONTEXT = 512, 64


@cache
def _recordings(store: Store, seed: int) -> tuple[tuple[Array, Array], ...]:
    """(frames f32 [count, 576] with context, labels [count]: 1 speech, 0 none, NaN at edges) of several recordings.

    Seed 0 is of the first 3.5 s of the voice, for calibration; seed 1 of the rest, in other noise.
    """
    voice = _speech(store)
    parts = voice[: 7 * RATE // 2] if seed == 0 else voice[7 * RATE // 2 :]
    random = np.random.default_rng(50 + seed)
    found = []
    for color in (0.0, 1.0):
        for snr in (20.0, 10.0, 5.0) if seed else (15.0, 7.0):
            pieces = []
            for start in range(0, len(parts), RATE):
                pieces += [parts[start : start + RATE], np.zeros(int(random.uniform(0.4, 1.0) * RATE), np.float32)]
            clean = np.concatenate(pieces)
            clean = clean[: len(clean) // FRAME * FRAME]
            level = np.sqrt(_power(parts) / 10 ** (snr / 10))
            noisy = np.clip(clean + level * _noise(len(clean), color, random), -1, 1).astype(np.float32)
            found.append((_framed(noisy), _speech_labels(clean, parts)))
    return tuple(found)


def _framed(sound: Array) -> Array:
    frames = sound.reshape(-1, FRAME)
    before = np.concatenate([np.zeros((1, CONTEXT), np.float32), frames[:-1, -CONTEXT:]])
    return np.concatenate([before, frames], axis=1)


def _speech_labels(clean: Array, voice: Array) -> Array:
    """1 where a frame is as loud as speech, 0 where it and its neighbours are silent, NaN between."""
    energy = np.mean(np.square(clean.reshape(-1, FRAME), dtype=np.float64), axis=1)
    loud = energy > 0.1 * _power(voice)
    faint = energy > 0.001 * _power(voice)
    near = np.convolve(faint, np.ones(7), "same") > 0
    return np.where(loud, 1.0, np.where(near, np.nan, 0.0))


def _vad_pair(store: Store, name: str, calibration: list[Sample], timed: Sample, **more: object) -> dict[str, object]:
    return dict(
        name=name, model=store.model(name), metric="frame ROC AUC", calibration=calibration, timed=timed, score=roc_auc,
        agreement=largest_error("probability"), margin=0.001, expected=0.993, **more,
    )  # fmt: skip


def _judged(probabilities: Array, labels: Array) -> Array:
    kept = np.isfinite(labels)
    return np.stack([np.asarray(probabilities, np.float64)[kept], labels[kept]], axis=1)


def silero_vad_16k_sequence(store: Store) -> Pair:
    """A whole recording in one run."""

    def feed(frames: Array) -> Sample:
        return {"input": frames, "h": np.zeros((1, 1, 128), np.float32), "c": np.zeros((1, 1, 128), np.float32)}

    def predict(run: Run) -> Array:
        found = [(run(feed(frames))["speech_probs"], labels) for frames, labels in _recordings(store, 1)]
        return np.concatenate([_judged(p, labels) for p, labels in found])

    calibration = [feed(frames[at : at + 64]) for frames, _ in _recordings(store, 0) for at in range(0, 128, 64)]
    timed = feed(_recordings(store, 1)[0][0][:64])
    return Pair(predict=predict, **_vad_pair(store, "silero_vad_16k_sequence", calibration, timed))  # type: ignore[arg-type]


def _streaming(name: str, has_rate: bool) -> Maker:
    """A model that hears 32 ms in a run, and hands its state on."""

    def make(store: Store) -> Pair:
        rate = {"sr": np.asarray(RATE, np.int64)} if has_rate else {}

        def steps(run: Run, frames: Array, seen: list[Sample] | None = None) -> Array:
            state = np.zeros((2, 1, 128), np.float32)
            found = []
            for n, frame in enumerate(frames):
                sample = {"input": frame[None], "state": state, **rate}
                if seen is not None and n % 8 == 3:
                    seen.append(sample)
                outputs = run(sample)
                state = np.array(outputs["stateN"])
                found.append(float(np.asarray(outputs["output"]).reshape(-1)[0]))
            return np.asarray(found)

        def predict(run: Run) -> Array:
            return np.concatenate([_judged(steps(run, frames), labels) for frames, labels in _recordings(store, 1)])

        calibration: list[Sample] = []
        plain = _onnxruntime(store, name)
        for frames, _ in _recordings(store, 0):
            steps(plain, frames, calibration)
        values = {"sr": RATE} if has_rate else {}
        return Pair(
            predict=predict, values=values,
            **_vad_pair(store, name, calibration, calibration[len(calibration) // 2]),  # type: ignore[arg-type]
        )  # fmt: skip

    return make


def _onnxruntime(store: Store, name: str) -> Run:
    """The float model in ONNX Runtime: what states and scores are made with."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    session = onnxruntime.InferenceSession(str(store.model(name)), options, providers=["CPUExecutionProvider"])
    inputs, names = {port.name for port in session.get_inputs()}, [port.name for port in session.get_outputs()]

    def run(sample: Sample) -> Outputs:
        return dict(zip(names, session.run(names, {k: v for k, v in sample.items() if k in inputs}), strict=True))

    return run


# How good speech sounds.

SECONDS_9 = 144160
_LEVELS = (60.0, 20.0, 10.0, 0.0)


def _clips(store: Store, seed: int, levels: tuple[float, ...], each: int) -> list[tuple[Array, float]]:
    """(9.01 s of speech and white noise, its ratio in dB)."""
    voice = _speech(store)
    random = np.random.default_rng(70 + seed)
    found = []
    for _ in range(each):
        start = int(random.integers(0, len(voice) - SECONDS_9))
        cut = voice[start : start + SECONDS_9] * np.float32(random.uniform(0.5, 1.0))
        found += [(_mixed(cut, snr, 0.0, random), snr) for snr in levels]
    return found


def _spectrum(sound: Array, size: int, hop: int) -> Array:
    """Power [frames, bins] of a centred short-time Fourier transform with Hann's window."""
    pad = size // 2
    padded = np.pad(sound.astype(np.float64), pad, mode="reflect")
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(size) / size)
    count = 1 + (len(padded) - size) // hop
    frames = np.lib.stride_tricks.as_strided(padded, (count, size), (hop * padded.itemsize, padded.itemsize))
    return np.abs(np.fft.rfft(frames * window, axis=1)) ** 2


def _mel_filters(count: int, size: int) -> Array:
    """[count, bins]: triangles of equal area, evenly spaced in Slaney's mel scale (Auditory Toolbox, 1998)."""

    def to_hertz(mel: Array) -> Array:
        return np.where(mel < 15, mel * 200 / 3, 1000 * np.exp((mel - 15) * np.log(6.4) / 27))

    top = 15 + np.log(RATE / 2 / 1000) / (np.log(6.4) / 27)
    edges = to_hertz(np.linspace(0, top, count + 2))
    bins = np.fft.rfftfreq(size, 1 / RATE)
    up = (bins[None] - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    down = (edges[2:, None] - bins[None]) / (edges[2:] - edges[1:-1])[:, None]
    return np.maximum(0, np.minimum(up, down)) * (2 / (edges[2:] - edges[:-2]))[:, None]


def _wave_input(clip: Array) -> Sample:
    return {"input_1": clip[None]}


def _mel_input(clip: Array) -> Sample:
    power = _spectrum(clip[:-160], 321, 160) @ _mel_filters(120, 321).T
    decibel = 10 * np.log10(np.maximum(power, 1e-10) / max(power.max(), 1e-10))
    return {"input_1": ((np.maximum(decibel, -80) + 40) / 40).astype(np.float32)[None]}


def _log_input(clip: Array) -> Sample:
    power = np.log10(np.maximum(_spectrum(clip[:-160], 320, 160), 1e-12))
    return {"input_1": power.astype(np.float32)[None]}


_INPUTS = {"wave": _wave_input, "mel": _mel_input, "log": _log_input}


def _quality(name: str, kind: str, column: int, expected: float | None = None) -> Maker:
    """Speech in more noise sounds worse: the share of pairs of clips that the score orders so."""

    def make(store: Store) -> Pair:
        prepare = _INPUTS[kind]
        judged = [(prepare(clip), snr) for clip, snr in _clips(store, 1, _LEVELS, 5)]
        calibration = [prepare(clip) for clip, _ in _clips(store, 0, (40.0, 15.0, 5.0), 4)]

        def predict(run: Run) -> Array:
            scores = [float(np.asarray(next(iter(run(sample).values()))).reshape(-1)[column]) for sample, _ in judged]
            return np.asarray([(score, snr) for score, (_, snr) in zip(scores, judged, strict=True)])

        return Pair(
            name=name, model=store.model(name), metric="clips in order", calibration=calibration, timed=judged[0][0],
            predict=predict, score=concordance, agreement=largest_error("score"), expected=expected,
        )  # fmt: skip

    return make


# Noise suppression.


def _resampled(sound: Array, count: int) -> Array:
    """The band-limited sound with another number of samples."""
    spectrum = np.fft.rfft(sound)
    held = np.zeros(count // 2 + 1, complex)
    kept = min(len(held), len(spectrum))
    held[:kept] = spectrum[:kept]
    return (np.fft.irfft(held, count) * (count / len(sound))).astype(np.float32)


def _denoiser(name: str, rate: int, window: int, size: int, hop: int) -> Maker:
    """Noisy speech before and after: what another model of the zoo thinks of it."""

    def make(store: Store) -> Pair:
        shape = np.sqrt(np.hanning(window))

        def analysed(clip: Array) -> Array:
            sound = _resampled(clip, len(clip) * rate // RATE) if rate != RATE else clip
            padded = np.pad(sound, (window - hop, window))
            count = (len(padded) - window) // hop + 1
            return np.stack([np.fft.rfft(shape * padded[n * hop : n * hop + window], size) for n in range(count)])

        def feed(spectrum: Array) -> Sample:
            return {"input": np.log10(np.maximum(np.abs(spectrum) ** 2, 1e-12)).astype(np.float32)[None]}

        def cleaned(spectrum: Array, gain: Array) -> Array:
            frames = np.fft.irfft(spectrum * np.clip(gain, 1e-4, 1), size)[:, :window] * shape
            sound, weight = np.zeros((2, len(frames) * hop + window))
            for n, frame in enumerate(frames):
                sound[n * hop : n * hop + window] += frame
                weight[n * hop : n * hop + window] += shape**2
            sound = (sound / np.maximum(weight, 1e-3))[window - hop :][: SECONDS_9 * rate // RATE]
            sound = sound if rate == RATE else _resampled(sound, SECONDS_9)
            return np.clip(sound, -1, 1).astype(np.float32)

        judge = _onnxruntime(store, "dnsmos_sig_bak_ovr")
        judged = [analysed(clip) for clip, _ in _clips(store, 1, (20.0, 10.0, 5.0, 0.0), 3)]
        held = [analysed(clip) for clip, _ in _clips(store, 0, (25.0, 12.0, 3.0), 2)]
        calibration = [feed(spectrum[at : at + 200]) for spectrum in held for at in (0, 300, 600)]

        def predict(run: Run) -> Array:
            rows = []
            for spectrum in judged:
                gain = np.asarray(next(iter(run(feed(spectrum)).values())), np.float64)[0]
                rows.append((float(judge(_wave_input(cleaned(spectrum, gain)))["Identity:0"][0, 2]), gain.mean()))
            return np.asarray(rows)

        return Pair(
            name=name, model=store.model(name), metric="score after", calibration=calibration,
            timed=feed(judged[0][:100]), predict=predict, score=mean_of_first, agreement=largest_error("score"),
        )  # fmt: skip

    return make


# Notes.

_MUSIC_RATE, _MUSIC_SAMPLES = 22050, 43844


def _note(midi: int, random: np.random.Generator) -> Array:
    """f32 [1, 43844, 1]: two seconds of a tone with harmonics of chance that fades."""
    seconds = np.arange(_MUSIC_SAMPLES) / _MUSIC_RATE
    pitch = 440 * 2 ** ((midi - 69) / 12)
    sound = np.zeros(_MUSIC_SAMPLES)
    for k in range(1, 9):
        if k * pitch < _MUSIC_RATE / 2.2:
            sound += random.uniform(0.5, 1.5) * np.sin(2 * np.pi * k * pitch * seconds + random.uniform(0, 6)) / k
    sound *= np.minimum(seconds / 0.01, 1) * np.exp(-seconds * random.uniform(0.5, 1.5))
    sound = 0.3 * sound / np.abs(sound).max() + 0.002 * random.standard_normal(_MUSIC_SAMPLES)
    return sound.astype(np.float32)[None, :, None]


def basic_pitch(store: Store) -> Pair:
    """Single notes of two octaves and more."""
    name = "serving_default_input_2:0"
    random = np.random.default_rng(90)
    judged = [({name: _note(midi, random)}, midi) for midi in range(45, 81)]
    calibration: list[Sample] = [{name: _note(midi, random)} for midi in range(44, 82, 3)]

    def predict(run: Run) -> Array:
        rows = []
        for sample, midi in judged:
            notes = np.asarray(run(sample)["StatefulPartitionedCall:1"])[0].mean(axis=0)
            rows.append((21 + int(notes.argmax()) == midi, notes.argmax(), notes.max()))
        return np.asarray(rows, np.float64)

    return Pair(
        name="basic_pitch_nmp", model=store.model("basic_pitch_nmp"), metric="notes right", calibration=calibration,
        timed=judged[0][0], predict=predict, score=mean_of_first, agreement=same(1, "notes as float"), expected=1.0,
    )  # fmt: skip


PAIRS: dict[str, Maker] = {
    "silero_vad_16k_sequence": silero_vad_16k_sequence,
    "silero_vad_16k_op15": _streaming("silero_vad_16k_op15", True),
    "silero_vad_half": _streaming("silero_vad_half", False),
    "silero_vad_openvino_16k": _streaming("silero_vad_openvino_16k", False),
    "basic_pitch_nmp": basic_pitch,
    "dnsmos_sig_bak_ovr": _quality("dnsmos_sig_bak_ovr", "wave", 2),
    "pdnsmos_sig_bak_ovr": _quality("pdnsmos_sig_bak_ovr", "wave", 2),
    "dnsmos_model_v8": _quality("dnsmos_model_v8", "mel", 0),
    "dnsmos_bak_ovr": _quality("dnsmos_bak_ovr", "log", 1),
    "nsnet2_16k": _denoiser("nsnet2_16k", 16000, 320, 320, 160),
    "nsnet2_48k": _denoiser("nsnet2_48k", 48000, 960, 1024, 512),
}

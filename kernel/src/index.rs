//! The twin of `plain/index.py`.

use std::cell::Cell;

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::layout::{i32_at, i64_at, INDEX_ENTRY_BYTES, KEY_BYTES};

fn seconds_between(begin_ms: i64, store_ms: i64) -> i32 {
    if begin_ms <= 0 {
        return 0;
    }
    let seconds = store_ms.saturating_sub(begin_ms).max(0) / 1000;
    i32::try_from(seconds).unwrap_or(i32::MAX)
}

/// The entries of these keys, and how many of their slots were empty; None for keys that are cut short.
fn link(
    slots: &[Cell<i32>],
    keys: &[u8],
    first: i32,
    mut begin_ms: i64,
) -> Option<(Vec<u8>, usize)> {
    let mut entries = Vec::with_capacity(keys.len() / KEY_BYTES * INDEX_ENTRY_BYTES);
    let mut used = 0;
    // Slots lie anywhere in 20 MB. All are read first, one right after the other: so the waits for memory overlap.
    let mut places = Vec::with_capacity(keys.len() / KEY_BYTES);
    for key in keys.chunks_exact(KEY_BYTES) {
        let at = i64::from(i32_at(key, 0)?).rem_euclid(slots.len() as i64) as usize;
        places.push((at, slots[at].get()));
    }
    for ((number, key), (at, before)) in (first..).zip(keys.chunks_exact(KEY_BYTES)).zip(places) {
        let (hash, log_offset, store_ms) = (i32_at(key, 0)?, i64_at(key, 4)?, i64_at(key, 12)?);
        // Whole numbers in the file's layout: a process killed here leaves no half of one.
        let now = i32::from_be(slots[at].replace(number.to_be()));
        // An earlier key of this call may have been in the same slot.
        let mut previous = if now >= first { now } else { i32::from_be(before) };
        if previous <= 0 || previous >= number {
            previous = 0;
            used += 1;
        }
        entries.extend_from_slice(&hash.to_be_bytes());
        entries.extend_from_slice(&log_offset.to_be_bytes());
        entries.extend_from_slice(&seconds_between(begin_ms, store_ms).to_be_bytes());
        entries.extend_from_slice(&previous.to_be_bytes());
        if number == 1 {
            begin_ms = store_ms;
        }
    }
    Some((entries, used))
}

/// See `plain/index.py`.
#[pyfunction]
fn link_keys<'py>(
    py: Python<'py>,
    slots: &Bound<'py, PyAny>,
    keys: &[u8],
    first: i64,
    begin_ms: i64,
) -> PyResult<(Bound<'py, PyBytes>, usize)> {
    let count = (keys.len() / KEY_BYTES) as i64;
    let number = i32::try_from(first)
        .ok()
        .filter(|number| *number >= 1 && count <= i64::from(i32::MAX) - i64::from(*number));
    let refused = || PyValueError::new_err("these keys cannot be linked");
    let slots = PyBuffer::<i32>::get(slots).map_err(|_| refused())?;
    let found = match (slots.as_mut_slice(py), number) {
        (Some(cells), Some(number)) if !cells.is_empty() && keys.len() % KEY_BYTES == 0 => {
            link(cells, keys, number, begin_ms)
        }
        _ => None,
    };
    let (entries, used) = found.ok_or_else(refused)?;
    Ok((PyBytes::new(py, &entries), used))
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(link_keys, module)?)
}

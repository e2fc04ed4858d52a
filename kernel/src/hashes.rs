//! Java's string hash and Apache's checksum (`plain/hashes.py`).

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

use crate::layout::CRC_MASK;

/// `String.hashCode` of the text these UTF-8 bytes stand for; what is not UTF-8 counts as U+FFFD, as in Java.
pub fn java_hash(data: &[u8]) -> i32 {
    if data.is_ascii() {
        return extend(0, data);
    }
    String::from_utf8_lossy(data)
        .encode_utf16()
        .fold(0i32, |hash, unit| {
            hash.wrapping_mul(31).wrapping_add(i32::from(unit))
        })
}

/// The hash of a text from the hash of what stands before `data`, which must be ASCII.
pub fn extend(prefix: i32, data: &[u8]) -> i32 {
    // Eight at a time: what is multiplied one after the other is then only every eighth.
    let mut chunks = data.chunks_exact(8);
    let hash = chunks.by_ref().fold(prefix, |hash, chunk| {
        let weighted = chunk
            .iter()
            .zip(POWERS)
            .fold(0i32, |sum, (&byte, power)| {
                sum.wrapping_add(i32::from(byte).wrapping_mul(power))
            });
        hash.wrapping_mul(POWERS[0].wrapping_mul(31))
            .wrapping_add(weighted)
    });
    chunks.remainder().iter().fold(hash, |hash, &byte| {
        hash.wrapping_mul(31).wrapping_add(i32::from(byte))
    })
}

/// 31 to the power of 7, 6, ... 0.
const POWERS: [i32; 8] = {
    let mut powers = [1i32; 8];
    let mut at = 7;
    while at > 0 {
        powers[at - 1] = powers[at].wrapping_mul(31);
        at -= 1;
    }
    powers
};

/// The checksum of a stored body: CRC-32 with the top bit cleared.
pub fn body_crc(body: &[u8]) -> u32 {
    crc32fast::hash(body) & CRC_MASK
}

#[pyfunction]
fn java_hash_bytes(data: PyBackedBytes) -> i32 {
    java_hash(&data)
}

#[pyfunction(name = "body_crc")]
fn py_body_crc(data: PyBackedBytes) -> u32 {
    body_crc(&data)
}

/// Start and end of a part, as two native 64-bit numbers; None when it is not within `length` bytes.
fn range(pair: &[u8], length: usize) -> Option<(usize, usize)> {
    let start = usize::try_from(i64::from_ne_bytes(pair.get(..8)?.try_into().ok()?)).ok()?;
    let end = usize::try_from(i64::from_ne_bytes(pair.get(8..)?.try_into().ok()?)).ok()?;
    (start <= end && end <= length).then_some((start, end))
}

#[pyfunction]
fn body_crcs<'py>(
    py: Python<'py>,
    data: PyBuffer<u8>,
    ranges: PyBackedBytes,
) -> PyResult<Bound<'py, PyBytes>> {
    let refused = |text: &str| PyErr::new::<PyValueError, _>(text.to_owned());
    let cells = data
        .as_slice(py)
        .ok_or_else(|| refused("the data is not in one piece"))?;
    if ranges.len() % 16 != 0 {
        return Err(refused("ranges are pairs of 64-bit numbers"));
    }
    let mut found = Vec::with_capacity(ranges.len() / 4);
    // The data may be a mapped file, which others write: only a copy of a body can be handed on as plain bytes.
    let mut body = Vec::new();
    for pair in ranges.chunks_exact(16) {
        let (start, end) =
            range(pair, cells.len()).ok_or_else(|| refused("a range is outside of the data"))?;
        body.clear();
        body.extend(cells[start..end].iter().map(|cell| cell.get()));
        found.extend_from_slice(&body_crc(&body).to_ne_bytes());
    }
    Ok(PyBytes::new(py, &found))
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(body_crcs, module)?)?;
    module.add_function(wrap_pyfunction!(py_body_crc, module)?)?;
    module.add_function(wrap_pyfunction!(java_hash_bytes, module)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_of_ascii_is_javas() {
        assert_eq!(java_hash(b"TagA"), 2598919);
        assert_eq!(java_hash(b""), 0);
    }

    #[test]
    fn hash_of_any_length_is_that_of_one_byte_after_the_other() {
        let text = b"the quick brown fox jumps over the lazy dog";
        for end in 0..text.len() {
            let slowly = text[..end].iter().fold(7i32, |hash, &byte| {
                hash.wrapping_mul(31).wrapping_add(i32::from(byte))
            });
            assert_eq!(extend(7, &text[..end]), slowly);
        }
    }

    #[test]
    fn hash_counts_utf16_units() {
        // U+1F600 is the pair D83D DE00.
        assert_eq!(java_hash("\u{1F600}".as_bytes()), 0xD83D * 31 + 0xDE00);
    }
}

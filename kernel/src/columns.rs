//! The twin of `plain/columns.py`.

use std::collections::HashMap;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// Up to so many pairs a name is compared with those before it; beyond, it is looked up.
const COMPARED: usize = 16;

/// A pair: where its name begins and ends, and where its value ends (it begins one byte behind the name).
#[derive(Clone, Copy)]
struct Pair {
    start: usize,
    name_end: usize,
    end: usize,
}

impl Pair {
    fn name<'a>(&self, texts: &'a [u8]) -> &'a [u8] {
        &texts[self.start..self.name_end]
    }

    fn value<'a>(&self, texts: &'a [u8]) -> &'a [u8] {
        &texts[self.name_end + 1..self.end]
    }
}

/// Calls `found` with every pair of `texts[start..end]` that has a name and a value.
fn each_pair(texts: &[u8], start: usize, end: usize, mut found: impl FnMut(Pair)) {
    let mut begin = start;
    let mut mark = None;
    let mut close = |begin: usize, mark: Option<usize>, end: usize| {
        if let Some(name_end) = mark.filter(|mark| *mark > begin && mark + 1 < end) {
            found(Pair {
                start: begin,
                name_end,
                end,
            });
        }
    };
    for at in memchr::memchr2_iter(1, 2, &texts[start..end]) {
        let at = start + at;
        if texts[at] == 1 {
            mark = mark.or(Some(at));
        } else {
            close(begin, mark, at);
            begin = at + 1;
            mark = None;
        }
    }
    close(begin, mark, end);
}

/// Values one after the other, and where each ends.
struct Column {
    ends: Vec<u8>,
    bytes: Vec<u8>,
}

impl Column {
    fn new(count: usize, bytes: usize) -> Self {
        let mut ends = Vec::with_capacity(4 * (count + 1));
        ends.extend_from_slice(&0i32.to_ne_bytes());
        Self {
            ends,
            bytes: Vec::with_capacity(bytes),
        }
    }

    /// A column is never longer than the texts it was taken from, whose ends are 32-bit numbers.
    fn push(&mut self, value: &[u8]) {
        self.bytes.extend_from_slice(value);
        self.ends
            .extend_from_slice(&(self.bytes.len() as i32).to_ne_bytes());
    }
}

/// The ends as positions; an error where they are not increasing positions in the texts.
fn positions(texts: &[u8], ends: &[u8]) -> PyResult<Vec<usize>> {
    if ends.is_empty() || ends.len() % 4 != 0 {
        return Err(PyValueError::new_err("the ends of the texts are cut short"));
    }
    let mut found = Vec::with_capacity(ends.len() / 4);
    let mut before = 0;
    for number in ends.chunks_exact(4) {
        let end = i32::from_ne_bytes([number[0], number[1], number[2], number[3]]);
        match usize::try_from(end) {
            Ok(end) if end >= before && (end <= texts.len() || found.is_empty()) => {
                found.push(end);
                before = end;
            }
            _ => {
                return Err(PyValueError::new_err(
                    "a text ends before it begins, or behind the last byte",
                ))
            }
        }
    }
    Ok(found)
}

/// See `plain/columns.py`.
#[pyfunction]
#[allow(clippy::type_complexity)] // the signature of the plain twin
fn property_values<'py>(
    py: Python<'py>,
    texts: &[u8],
    ends: &[u8],
    names: Vec<Bound<'py, PyBytes>>,
) -> PyResult<Vec<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)>> {
    let names: Vec<&[u8]> = names.iter().map(|name| name.as_bytes()).collect();
    if names
        .iter()
        .any(|name| name.is_empty() || memchr::memchr2(1, 2, name).is_some())
    {
        return Err(PyValueError::new_err("no property can have this name"));
    }
    let positions = positions(texts, ends)?;
    let mut columns: Vec<Column> = names
        .iter()
        .map(|_| Column::new(positions.len(), 0))
        .collect();
    let mut values: Vec<&[u8]> = vec![b""; names.len()];
    for row in positions.windows(2) {
        values.fill(b"");
        each_pair(texts, row[0], row[1], |pair| {
            let name = pair.name(texts);
            for (at, wanted) in names.iter().enumerate() {
                if *wanted == name {
                    values[at] = pair.value(texts);
                }
            }
        });
        for (column, value) in columns.iter_mut().zip(&values) {
            column.push(value);
        }
    }
    Ok(columns
        .iter()
        .map(|column| {
            (
                PyBytes::new(py, &column.ends),
                PyBytes::new(py, &column.bytes),
            )
        })
        .collect())
}

/// Leaves of several pairs with one name the last.
fn keep_last(texts: &[u8], pairs: &mut Vec<Pair>) {
    let mut replaced = vec![false; pairs.len()];
    if pairs.len() <= COMPARED {
        for (at, pair) in pairs.iter().enumerate() {
            let name = pair.name(texts);
            for (before, other) in pairs[..at].iter().enumerate() {
                replaced[before] |= other.name(texts) == name;
            }
        }
    } else {
        let mut last = HashMap::with_capacity(pairs.len());
        for (at, pair) in pairs.iter().enumerate() {
            if let Some(before) = last.insert(pair.name(texts), at) {
                replaced[before] = true;
            }
        }
    }
    let mut at = 0;
    pairs.retain(|_| {
        at += 1;
        !replaced[at - 1]
    });
}

/// See `plain/columns.py`.
#[pyfunction]
#[allow(clippy::type_complexity)] // the signature of the plain twin
fn property_pairs<'py>(
    py: Python<'py>,
    texts: &[u8],
    ends: &[u8],
) -> PyResult<(
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
)> {
    let positions = positions(texts, ends)?;
    let mut counts: Vec<u8> = Vec::with_capacity(ends.len());
    counts.extend_from_slice(&0i32.to_ne_bytes());
    let mut count = 0i32;
    let (mut names, mut values) = (Column::new(0, texts.len()), Column::new(0, texts.len()));
    let mut pairs = Vec::new();
    for row in positions.windows(2) {
        pairs.clear();
        each_pair(texts, row[0], row[1], |pair| pairs.push(pair));
        keep_last(texts, &mut pairs);
        for pair in &pairs {
            names.push(pair.name(texts));
            values.push(pair.value(texts));
        }
        count += pairs.len() as i32;
        counts.extend_from_slice(&count.to_ne_bytes());
    }
    Ok((
        PyBytes::new(py, &counts),
        PyBytes::new(py, &names.ends),
        PyBytes::new(py, &names.bytes),
        PyBytes::new(py, &values.ends),
        PyBytes::new(py, &values.bytes),
    ))
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(property_values, module)?)?;
    module.add_function(wrap_pyfunction!(property_pairs, module)?)
}

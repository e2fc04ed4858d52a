//! Response frames in both header forms; the twin of `plain/answers.py`.

use std::io::Write;

use pyo3::buffer::{PyBuffer, ReadOnlyCell};
use pyo3::exceptions::{PyBufferError, PyOverflowError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use pyo3::types::{PyBytes, PyString};

use crate::frames::json::{text_end, write_text};
use crate::layout::*;

const RESPONSE: i32 = 1;
const PYTHON: u8 = 3;
/// What our answers say: 5.5.0.
const VERSION: i16 = 513;
const BINARY: u32 = 1;
/// The sizes of a frame and of its header, in front of the header.
const SIZES_BYTES: usize = 8;

pub fn too_large<E>(_: E) -> PyErr {
    PyOverflowError::new_err("an answer is too large for its frame")
}

/// The value of an extension field.
pub enum Value {
    Text(PyBackedStr),
    Number(i64),
}

impl<'py> FromPyObject<'py> for Value {
    fn extract_bound(value: &Bound<'py, PyAny>) -> PyResult<Self> {
        if value.is_instance_of::<PyString>() {
            value.extract().map(Value::Text)
        } else {
            value.extract().map(Value::Number)
        }
    }
}

/// The same, without an owner.
#[derive(Clone, Copy)]
pub enum Field<'a> {
    Text(&'a str),
    Number(i64),
}

/// A header behind room for the sizes of its frame, which `set_sizes` writes.
pub fn header(
    is_binary: bool,
    opaque: i32,
    code: i16,
    remark: Option<&str>,
    fields: &[(&str, Field<'_>)],
) -> PyResult<Vec<u8>> {
    let mut head: Vec<u8> = Vec::with_capacity(320);
    head.extend([0; SIZES_BYTES]);
    if is_binary {
        write_binary(&mut head, opaque, code, remark.unwrap_or(""), fields)?;
    } else {
        write_json(&mut head, opaque, code, remark, fields)?;
    }
    if head.len() - SIZES_BYTES > HEADER_BYTES_MAX {
        return Err(too_large(()));
    }
    Ok(head)
}

fn write_binary(
    head: &mut Vec<u8>,
    opaque: i32,
    code: i16,
    remark: &str,
    fields: &[(&str, Field<'_>)],
) -> PyResult<()> {
    head.extend(code.to_be_bytes());
    head.push(PYTHON);
    head.extend(VERSION.to_be_bytes());
    head.extend(opaque.to_be_bytes());
    head.extend(RESPONSE.to_be_bytes());
    let size = u32::try_from(remark.len()).map_err(too_large)?;
    head.extend(size.to_be_bytes());
    head.extend(remark.as_bytes());
    let start = head.len();
    head.extend([0; 4]);
    for (name, field) in fields {
        if matches!(field, Field::Text("")) {
            continue;
        }
        let size = u16::try_from(name.len()).map_err(too_large)?;
        head.extend(size.to_be_bytes());
        head.extend(name.as_bytes());
        let value = head.len();
        head.extend([0; 4]);
        match field {
            Field::Text(text) => head.extend(text.as_bytes()),
            Field::Number(number) => write!(head, "{number}")?,
        }
        set_size(head, value)?;
    }
    set_size(head, start)
}

/// Write the number of bytes after a size into it.
fn set_size(head: &mut [u8], at: usize) -> PyResult<()> {
    let size = u32::try_from(head.len() - at - 4).map_err(too_large)?;
    head[at..at + 4].copy_from_slice(&size.to_be_bytes());
    Ok(())
}

/// Most texts need no escapes and are copied as a whole.
fn write_escaped(head: &mut Vec<u8>, text: &str) {
    if text_end(text.as_bytes()).is_none() {
        head.extend_from_slice(text.as_bytes());
    } else {
        write_text(head, text);
    }
}

fn write_json(
    head: &mut Vec<u8>,
    opaque: i32,
    code: i16,
    remark: Option<&str>,
    fields: &[(&str, Field<'_>)],
) -> PyResult<()> {
    write!(head, "{{\"code\":{code},")?;
    if !fields.is_empty() {
        head.extend(b"\"extFields\":");
        let mut mark = b'{';
        for (name, field) in fields {
            head.extend([mark, b'"']);
            write_escaped(head, name);
            head.extend(b"\":\"");
            match field {
                Field::Text(text) => write_escaped(head, text),
                Field::Number(number) => write!(head, "{number}")?,
            }
            head.push(b'"');
            mark = b',';
        }
        head.extend(b"},");
    }
    write!(
        head,
        "\"flag\":{RESPONSE},\"language\":\"PYTHON\",\"opaque\":{opaque},"
    )?;
    if let Some(remark) = remark {
        head.extend(b"\"remark\":\"");
        write_escaped(head, remark);
        head.extend(b"\",");
    }
    write!(
        head,
        "\"serializeTypeCurrentRPC\":\"JSON\",\"version\":{VERSION}}}"
    )?;
    Ok(())
}

pub fn set_sizes(head: &mut [u8], is_binary: bool, body_bytes: usize) -> PyResult<()> {
    let header_bytes = head.len() - SIZES_BYTES;
    let size = i32::try_from(4 + header_bytes + body_bytes).map_err(too_large)?;
    let word = if is_binary { BINARY << 24 } else { 0 } | header_bytes as u32;
    head[..4].copy_from_slice(&size.to_be_bytes());
    head[4..8].copy_from_slice(&word.to_be_bytes());
    Ok(())
}

/// Copy to the start of `to`; returns what is behind it.
pub fn copy_cells<'a>(to: &'a mut [u8], cells: &[ReadOnlyCell<u8>]) -> &'a mut [u8] {
    let (part, behind) = to.split_at_mut(cells.len());
    for (byte, cell) in part.iter_mut().zip(cells) {
        *byte = cell.get();
    }
    behind
}

/// Parts of the log, each with the bounds of the slices that are sent.
pub type Pieces<'py> = Vec<(PyBuffer<u8>, Bound<'py, PyBytes>)>;

fn place(bound: i64) -> Option<usize> {
    usize::try_from(bound).ok()
}

/// A frame with the slices of all pieces as its body.
pub fn frame<'py>(
    py: Python<'py>,
    is_binary: bool,
    mut head: Vec<u8>,
    pieces: &Pieces<'py>,
) -> PyResult<Bound<'py, PyBytes>> {
    let mut slices: Vec<&[ReadOnlyCell<u8>]> = Vec::with_capacity(32);
    let mut body_bytes = 0;
    for (piece, bounds) in pieces {
        let cells = piece
            .as_slice(py)
            .ok_or_else(|| PyBufferError::new_err("a piece is not contiguous"))?;
        for bound in bounds.as_bytes().chunks(SLICE_BYTES) {
            let slice = i64_at(bound, 0)
                .and_then(place)
                .zip(i64_at(bound, 8).and_then(place))
                .and_then(|(start, end)| cells.get(start..end));
            let slice =
                slice.ok_or_else(|| PyValueError::new_err("a slice is outside its piece"))?;
            body_bytes += slice.len();
            slices.push(slice);
        }
    }
    set_sizes(&mut head, is_binary, body_bytes)?;
    PyBytes::new_with(py, head.len() + body_bytes, |frame| {
        let (start, mut rest) = frame.split_at_mut(head.len());
        start.copy_from_slice(&head);
        for slice in &slices {
            rest = copy_cells(rest, slice);
        }
        Ok(())
    })
}

type Fields = Vec<(PyBackedStr, Value)>;

fn header_of(
    is_binary: bool,
    opaque: i32,
    code: i16,
    remark: Option<&str>,
    fields: &Fields,
) -> PyResult<Vec<u8>> {
    let fields: Vec<(&str, Field<'_>)> = fields
        .iter()
        .map(|(name, value)| {
            let field = match value {
                Value::Text(text) => Field::Text(text),
                Value::Number(number) => Field::Number(*number),
            };
            (&**name, field)
        })
        .collect();
    header(is_binary, opaque, code, remark, &fields)
}

/// See `plain/answers.py`.
#[pyfunction]
#[pyo3(signature = (is_binary, opaque, code, remark, fields, pieces))]
fn encode_answer<'py>(
    py: Python<'py>,
    is_binary: bool,
    opaque: i32,
    code: i16,
    remark: Option<&str>,
    fields: Fields,
    pieces: Pieces<'py>,
) -> PyResult<Bound<'py, PyBytes>> {
    let head = header_of(is_binary, opaque, code, remark, &fields)?;
    frame(py, is_binary, head, &pieces)
}

type Answer = (bool, i32, i16, Option<PyBackedStr>, Fields);

/// See `plain/answers.py`.
#[pyfunction]
fn encode_answers<'py>(
    py: Python<'py>,
    answers: Vec<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyBytes>> {
    let mut frames: Vec<u8> = Vec::with_capacity(answers.len() * 128);
    for answer in &answers {
        let (is_binary, opaque, code, remark, fields): Answer = answer.extract()?;
        let mut head = header_of(is_binary, opaque, code, remark.as_deref(), &fields)?;
        set_sizes(&mut head, is_binary, 0)?;
        frames.extend(head);
    }
    Ok(PyBytes::new(py, &frames))
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(encode_answer, module)?)?;
    module.add_function(wrap_pyfunction!(encode_answers, module)?)
}

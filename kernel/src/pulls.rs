//! The fields of a pull request and its answer; the twin of `plain/pulls.py`.

use std::io::Write;

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyBufferError, PyOverflowError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

const RESPONSE: i32 = 1;
const PYTHON: u8 = 3;
/// What our answers say: 5.5.0.
const VERSION: i16 = 513;
const BINARY: u32 = 1;
const HEADER_BYTES_MAX: usize = 0x00ff_ffff;

const NAMES: [&str; 16] = [
    "consumerGroup",
    "topic",
    "queueId",
    "queueOffset",
    "maxMsgNums",
    "sysFlag",
    "commitOffset",
    "suspendTimeoutMillis",
    "subVersion",
    "subscription",
    "expressionType",
    "maxMsgBytes",
    "requestSource",
    "lo",
    "nsd",
    "oway",
];

type FieldValues<'a> = (
    &'a str,
    &'a str,
    i64,
    i64,
    i64,
    i64,
    i64,
    i64,
    i64,
    Option<&'a str>,
    Option<&'a str>,
    Option<i64>,
);

/// `[+-]?[0-9]{1,18}`.
fn long(text: &str) -> Option<i64> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if digits.is_empty() || digits.len() > 18 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let value = digits
        .bytes()
        .fold(0, |value, byte| value * 10 + i64::from(byte - b'0'));
    Some(if text.starts_with('-') { -value } else { value })
}

fn int(text: &str) -> Option<i64> {
    long(text).filter(|value| i32::try_from(*value).is_ok())
}

/// Texts by the number of their name; of two with one name the later counts, and the earlier may be anything.
#[derive(Default)]
struct Fields<'a> {
    texts: [Option<&'a str>; NAMES.len()],
}

impl<'a> Fields<'a> {
    fn note(&mut self, name: &str, text: &'a str) {
        if let Some(index) = NAMES.iter().position(|known| *known == name) {
            self.texts[index] = Some(text);
        }
    }

    /// A number that may be missing.
    fn number(&self, index: usize, read: fn(&str) -> Option<i64>) -> Option<Option<i64>> {
        match self.texts[index] {
            None => Some(None),
            Some(text) => read(text).map(Some),
        }
    }

    fn values(&self) -> Option<FieldValues<'a>> {
        self.number(12, int)?;
        if self.texts[13..]
            .iter()
            .flatten()
            .any(|text| !matches!(*text, "true" | "false"))
        {
            return None;
        }
        Some((
            self.texts[0]?,
            self.texts[1]?,
            self.number(2, int)??,
            self.number(3, long)??,
            self.number(4, int)??,
            self.number(5, int)??,
            self.number(6, long)?.unwrap_or(0),
            self.number(7, long)?.unwrap_or(0),
            self.number(8, long)?.unwrap_or(0),
            self.texts[9],
            self.texts[10],
            self.number(11, int)?,
        ))
    }
}

fn size(bytes: &[u8]) -> usize {
    bytes
        .iter()
        .fold(0, |size, byte| size << 8 | usize::from(*byte))
}

fn binary_fields(raw: &[u8]) -> Option<Fields<'_>> {
    let mut fields = Fields::default();
    let mut rest = raw;
    while !rest.is_empty() {
        let (name, behind) = cut(rest, 2)?;
        let (value, behind) = cut(behind, 4)?;
        if !name.is_empty() && !value.is_empty() {
            fields.note(
                std::str::from_utf8(name).ok()?,
                std::str::from_utf8(value).ok()?,
            );
        }
        rest = behind;
    }
    Some(fields)
}

/// A size of so many bytes and what it says, then the rest.
fn cut(raw: &[u8], size_bytes: usize) -> Option<(&[u8], &[u8])> {
    let start = raw.get(size_bytes..)?;
    let size = size(&raw[..size_bytes]);
    Some((start.get(..size)?, &start[size..]))
}

struct Json<'a> {
    rest: &'a [u8],
}

impl<'a> Json<'a> {
    fn blanks(&mut self) {
        let count = self
            .rest
            .iter()
            .take_while(|byte| matches!(byte, b' ' | b'\t' | b'\r' | b'\n'))
            .count();
        self.rest = &self.rest[count..];
    }

    /// A mark, and blanks behind it.
    fn mark(&mut self, mark: u8) -> Option<()> {
        self.rest = self.rest.strip_prefix(&[mark])?;
        self.blanks();
        Some(())
    }

    /// A text without escapes, and blanks behind it.
    fn text(&mut self) -> Option<&'a str> {
        let start = self.rest.strip_prefix(b"\"")?;
        let end = start
            .iter()
            .position(|byte| matches!(byte, b'"' | b'\\' | 0..=0x1f))?;
        self.rest = start[end..].strip_prefix(b"\"")?;
        self.blanks();
        std::str::from_utf8(&start[..end]).ok()
    }
}

fn json_fields(raw: &[u8]) -> Option<Fields<'_>> {
    let mut json = Json { rest: raw };
    let mut fields = Fields::default();
    json.blanks();
    json.mark(b'{')?;
    loop {
        let name = json.text()?;
        json.mark(b':')?;
        fields.note(name, json.text()?);
        if json.mark(b',').is_none() {
            json.mark(b'}')?;
            return json.rest.is_empty().then_some(fields);
        }
    }
}

/// Read the extension fields of a pull; see `plain/pulls.py`.
#[pyfunction]
fn pull_fields(raw: &[u8], is_binary: bool) -> Option<FieldValues<'_>> {
    if is_binary {
        binary_fields(raw)
    } else {
        json_fields(raw)
    }?
    .values()
}

fn too_large<E>(_: E) -> PyErr {
    PyOverflowError::new_err("an answer is too large for its frame")
}

/// A whole answer frame; see `plain/pulls.py`.
#[pyfunction]
fn pull_answer<'py>(
    py: Python<'py>,
    is_binary: bool,
    opaque: i32,
    code: i16,
    remark: &[u8],
    numbers: (i64, i64, i64, i64, i64, i64),
    slices: Vec<PyBuffer<u8>>,
) -> PyResult<Bound<'py, PyBytes>> {
    let (suggested, following, low, high, topic_flag, group_flag) = numbers;
    let mut head: Vec<u8> = Vec::with_capacity(320);
    head.extend([0; 8]);
    if is_binary {
        head.extend(code.to_be_bytes());
        head.push(PYTHON);
        head.extend(VERSION.to_be_bytes());
        head.extend(opaque.to_be_bytes());
        head.extend(RESPONSE.to_be_bytes());
        head.extend(
            u32::try_from(remark.len())
                .map_err(too_large)?
                .to_be_bytes(),
        );
        head.extend(remark);
        let fields = head.len();
        head.extend([0; 4]);
        for (name, number) in [
            ("suggestWhichBrokerId", suggested),
            ("nextBeginOffset", following),
            ("minOffset", low),
            ("maxOffset", high),
            ("topicSysFlag", topic_flag),
            ("groupSysFlag", group_flag),
        ] {
            head.extend((name.len() as u16).to_be_bytes());
            head.extend(name.as_bytes());
            let value = head.len();
            head.extend([0; 4]);
            write!(head, "{number}")?;
            let size = (head.len() - value - 4) as u32;
            head[value..value + 4].copy_from_slice(&size.to_be_bytes());
        }
        let size = u32::try_from(head.len() - fields - 4).map_err(too_large)?;
        head[fields..fields + 4].copy_from_slice(&size.to_be_bytes());
    } else {
        write!(
            head,
            "{{\"code\":{code},\"extFields\":{{\"suggestWhichBrokerId\":\"{suggested}\",\
             \"groupSysFlag\":\"{group_flag}\",\"nextBeginOffset\":\"{following}\",\"maxOffset\":\"{high}\",\
             \"minOffset\":\"{low}\",\"topicSysFlag\":\"{topic_flag}\"}},\"flag\":1,\"language\":\"PYTHON\",\
             \"opaque\":{opaque},\"remark\":\""
        )?;
        head.extend(remark);
        write!(
            head,
            "\",\"serializeTypeCurrentRPC\":\"JSON\",\"version\":{VERSION}}}"
        )?;
    }
    let header_bytes = head.len() - 8;
    if header_bytes > HEADER_BYTES_MAX {
        return Err(too_large(()));
    }
    let body_bytes: usize = slices.iter().map(|slice| slice.item_count()).sum();
    let size = u32::try_from(4 + header_bytes + body_bytes).map_err(too_large)?;
    let word = if is_binary { BINARY << 24 } else { 0 } | header_bytes as u32;
    head[..4].copy_from_slice(&size.to_be_bytes());
    head[4..8].copy_from_slice(&word.to_be_bytes());
    PyBytes::new_with(py, head.len() + body_bytes, |frame| {
        let (start, mut rest) = frame.split_at_mut(head.len());
        start.copy_from_slice(&head);
        for slice in &slices {
            let cells = slice
                .as_slice(py)
                .ok_or_else(|| PyBufferError::new_err("a slice is not contiguous"))?;
            let (part, behind) = rest.split_at_mut(cells.len());
            for (to, from) in part.iter_mut().zip(cells) {
                *to = from.get();
            }
            rest = behind;
        }
        Ok(())
    })
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(pull_fields, module)?)?;
    module.add_function(wrap_pyfunction!(pull_answer, module)?)
}

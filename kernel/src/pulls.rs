//! The fields of a pull request and its answer; the twin of `plain/pulls.py`.

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::sync::GILOnceCell;
use pyo3::types::{PyBytes, PyInt, PyString, PyTuple};

use crate::answers::{copy_cells, frame, header, set_sizes, Field, Pieces};
use crate::frames::json::text_end;
use crate::hashes::body_crc;
use crate::layout::*;
use crate::select::{cells_of, long as unit_long, pick, Filter};

const FOUND: i16 = 0;
const NO_MATCH: i16 = 20;

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

const ANSWER_NAMES: [&str; 8] = [
    "suggestWhichBrokerId",
    "nextBeginOffset",
    "minOffset",
    "maxOffset",
    "offsetDelta",
    "topicSysFlag",
    "groupSysFlag",
    "forbiddenType",
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
pub fn long(text: &str) -> Option<i64> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if digits.is_empty() || digits.len() > 18 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let value = digits
        .bytes()
        .fold(0, |value, byte| value * 10 + i64::from(byte - b'0'));
    Some(if text.starts_with('-') { -value } else { value })
}

pub fn int(text: &str) -> Option<i64> {
    long(text).filter(|value| i32::try_from(*value).is_ok())
}

/// Texts by the number of their name; of two with one name the later counts, and the earlier may be anything.
pub struct Fields<'a, const N: usize> {
    names: &'static [&'static str; N],
    pub texts: [Option<&'a str>; N],
}

impl<'a, const N: usize> Fields<'a, N> {
    fn new(names: &'static [&'static str; N]) -> Self {
        Fields {
            names,
            texts: [None; N],
        }
    }

    fn note(&mut self, name: &str, text: &'a str) {
        if let Some(index) = self.names.iter().position(|known| *known == name) {
            self.texts[index] = Some(text);
        }
    }

    /// A number that may be missing.
    pub fn number(&self, index: usize, read: fn(&str) -> Option<i64>) -> Option<Option<i64>> {
        match self.texts[index] {
            None => Some(None),
            Some(text) => read(text).map(Some),
        }
    }
}

fn size(bytes: &[u8]) -> usize {
    bytes
        .iter()
        .fold(0, |size, byte| size << 8 | usize::from(*byte))
}

fn note_binary<'a, const N: usize>(raw: &'a [u8], fields: &mut Fields<'a, N>) -> Option<()> {
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
    Some(())
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
        let end = text_end(start)?;
        self.rest = start[end..].strip_prefix(b"\"")?;
        self.blanks();
        std::str::from_utf8(&start[..end]).ok()
    }
}

fn note_json<'a, const N: usize>(raw: &'a [u8], fields: &mut Fields<'a, N>) -> Option<()> {
    let mut json = Json { rest: raw };
    json.blanks();
    json.mark(b'{')?;
    loop {
        let name = json.text()?;
        json.mark(b':')?;
        fields.note(name, json.text()?);
        if json.mark(b',').is_none() {
            json.mark(b'}')?;
            return json.rest.is_empty().then_some(());
        }
    }
}

pub fn read<'a, const N: usize>(
    raw: &'a [u8],
    is_binary: bool,
    names: &'static [&'static str; N],
) -> Option<Fields<'a, N>> {
    let mut fields = Fields::new(names);
    if is_binary {
        note_binary(raw, &mut fields)?;
    } else {
        note_json(raw, &mut fields)?;
    }
    Some(fields)
}

/// Of the plain kernel.
static PULL_FIELDS: GILOnceCell<Py<PyAny>> = GILOnceCell::new();

/// Read the extension fields of a pull; see `plain/pulls.py`.
#[pyfunction]
pub fn pull_fields<'py>(
    py: Python<'py>,
    raw: &[u8],
    is_binary: bool,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let class = PULL_FIELDS.get_or_try_init(py, || -> PyResult<Py<PyAny>> {
        let module = py.import("orbitmq.kernel.plain.pulls")?;
        Ok(module.getattr("PullFields")?.unbind())
    })?;
    field_values(raw, is_binary)
        .map(|values| class.bind(py).call1(values))
        .transpose()
}

fn field_values(raw: &[u8], is_binary: bool) -> Option<FieldValues<'_>> {
    let fields = read(raw, is_binary, &NAMES)?;
    fields.number(12, int)?;
    let mut flags = fields.texts[13..].iter().flatten();
    if flags.any(|text| !matches!(*text, "true" | "false")) {
        return None;
    }
    Some((
        fields.texts[0]?,
        fields.texts[1]?,
        fields.number(2, int)??,
        fields.number(3, long)??,
        fields.number(4, int)??,
        fields.number(5, int)??,
        fields.number(6, long)?.unwrap_or(0),
        fields.number(7, long)?.unwrap_or(0),
        fields.number(8, long)?.unwrap_or(0),
        fields.texts[9],
        fields.texts[10],
        fields.number(11, int)?,
    ))
}

type AnswerValues = (
    i64,
    i64,
    i64,
    i64,
    Option<i64>,
    Option<i64>,
    Option<i64>,
    Option<i64>,
);

/// Read the extension fields of the answer to a pull.
#[pyfunction]
fn answer_fields(raw: &[u8], is_binary: bool) -> Option<AnswerValues> {
    let fields = read(raw, is_binary, &ANSWER_NAMES)?;
    Some((
        fields.number(0, long)??,
        fields.number(1, long)??,
        fields.number(2, long)??,
        fields.number(3, long)??,
        fields.number(4, long)?,
        fields.number(5, int)?,
        fields.number(6, int)?,
        fields.number(7, int)?,
    ))
}

/// Positions of a record's parts.
struct Parts {
    end: usize,
    store_host: usize,
    after_hosts: usize,
    body: usize,
    body_end: usize,
    topic: usize,
    topic_end: usize,
}

/// The record at the start of `data`; None when there is none.
fn parts(data: &[u8], check_crc: bool) -> Option<Parts> {
    let sys_flag = i32_at(data, SYS_FLAG_AT)?;
    let host_bytes = |bit: i32| {
        if sys_flag & bit == 0 {
            HOST_V4_BYTES
        } else {
            HOST_V6_BYTES
        }
    };
    let store_host = BORN_HOST_AT + host_bytes(BORN_V6) + 8;
    let after_hosts = store_host + host_bytes(STORE_V6);
    let body = after_hosts + 16;
    let end = usize::try_from(i32_at(data, 0)?).ok()?;
    let body_end = body + usize::try_from(i32_at(data, body - 4)?).ok()?;
    if body_end + 3 > end || end > data.len() {
        return None;
    }
    let topic = body_end
        + match u32_at(data, MAGIC_AT)? {
            MAGIC_V1 => 1,
            MAGIC_V2 => 2,
            _ => return None,
        };
    let topic_end = topic + size(&data[body_end..topic]);
    if topic_end + 2 > end || size(&data[topic_end..topic_end + 2]) != end - topic_end - 2 {
        return None;
    }
    if check_crc && body_crc(&data[body..body_end]) != u32_at(data, CRC_AT)? {
        return None;
    }
    Some(Parts {
        end,
        store_host,
        after_hosts,
        body,
        body_end,
        topic,
        topic_end,
    })
}

/// The records that `data` holds, one after another; None when something else is in it.
#[pyfunction]
fn record_values<'py>(
    py: Python<'py>,
    data: &[u8],
    check_crc: bool,
) -> PyResult<Option<Vec<Bound<'py, PyTuple>>>> {
    let mut records = Vec::new();
    let mut rest = data;
    let mut topic: (&[u8], Bound<'py, PyString>) = (b"", PyString::new(py, ""));
    while !rest.is_empty() {
        let values = match parts(rest, check_crc) {
            Some(parts) => values(py, rest, &parts, &mut topic)?,
            None => None,
        };
        match values {
            Some((tuple, size)) => {
                records.push(tuple);
                rest = &rest[size..];
            }
            None => return Ok(None),
        }
    }
    Ok(Some(records))
}

type Values<'py> = Option<(Bound<'py, PyTuple>, usize)>;

fn values<'py, 'a>(
    py: Python<'py>,
    data: &'a [u8],
    parts: &Parts,
    topic: &mut (&'a [u8], Bound<'py, PyString>),
) -> PyResult<Values<'py>> {
    let topic_bytes = &data[parts.topic..parts.topic_end];
    if topic.0 != topic_bytes {
        // Mostly all of one topic: they share one text.
        match std::str::from_utf8(topic_bytes) {
            Ok(text) => *topic = (topic_bytes, PyString::new(py, text)),
            Err(_) => return Ok(None),
        }
    }
    let int = |at| PyInt::new(py, i32_at(data, at).unwrap_or_default()).into_any();
    let unsigned = |at| PyInt::new(py, i32_at(data, at).unwrap_or_default() as u32).into_any();
    let long = |at| PyInt::new(py, i64_at(data, at).unwrap_or_default()).into_any();
    let bytes = |start: usize, end: usize| PyBytes::new(py, &data[start..end]).into_any();
    let fields = [
        topic.1.clone().into_any(),
        int(QUEUE_ID_AT),
        bytes(parts.body, parts.body_end),
        bytes(parts.topic_end + 2, parts.end),
        long(BORN_TIME_AT),
        bytes(BORN_HOST_AT, parts.store_host - 8),
        int(FLAG_AT),
        int(SYS_FLAG_AT),
        int(parts.after_hosts),
        long(parts.after_hosts + 4),
        long(QUEUE_OFFSET_AT),
        long(LOG_OFFSET_AT),
        long(parts.store_host - 8),
        bytes(parts.store_host, parts.after_hosts),
        unsigned(CRC_AT),
        unsigned(MAGIC_AT),
        int(0),
    ];
    Ok(Some((PyTuple::new(py, fields)?, parts.end)))
}

/// Suggested broker, next, least and greatest offset, flags of the topic and of the group.
type Numbers = (i64, i64, i64, i64, i64, i64);

/// The fields of an answer, in Apache's order for either form of the header.
fn answer_fields_of(is_binary: bool, numbers: Numbers) -> [(&'static str, Field<'static>); 6] {
    let (suggested, following, low, high, topic_flag, group_flag) = numbers;
    let suggested = ("suggestWhichBrokerId", Field::Number(suggested));
    let following = ("nextBeginOffset", Field::Number(following));
    let low = ("minOffset", Field::Number(low));
    let high = ("maxOffset", Field::Number(high));
    let topic_flag = ("topicSysFlag", Field::Number(topic_flag));
    let group_flag = ("groupSysFlag", Field::Number(group_flag));
    if is_binary {
        [suggested, following, low, high, topic_flag, group_flag]
    } else {
        [suggested, group_flag, following, high, low, topic_flag]
    }
}

/// The answer to a single pull; see `plain/pulls.py`.
#[pyfunction]
fn pull_answer<'py>(
    py: Python<'py>,
    is_binary: bool,
    opaque: i32,
    code: i16,
    remark: &str,
    numbers: Numbers,
    pieces: Pieces<'py>,
) -> PyResult<Bound<'py, PyBytes>> {
    let fields = answer_fields_of(is_binary, numbers);
    let head = header(is_binary, opaque, code, Some(remark), &fields)?;
    frame(py, is_binary, head, &pieces)
}

/// What pulls have in common: topic, filter, limits of records in memory and on the disk, then which brokers are suggested
/// for those and the flags of topic and group.
type Alike<'py> = (
    PyBackedBytes,
    Option<PyRef<'py, Filter>>,
    (i64, i64),
    (i64, i64),
    (i64, i64, i64, i64),
);

/// One pull: form and number of its frame, queue units, queue offset, the queue's least and greatest offset, queue id.
type Asked<'py> = (bool, i32, PyBackedBytes, i64, i64, i64, i64, Alike<'py>);

/// Where slices of the window begin and end.
type Slices = Vec<(usize, usize)>;

type Given<'py> = (Bound<'py, PyBytes>, Vec<(i64, i64, i64)>);

/// Answer pulls, one after another; see `plain/pulls.py`.
#[pyfunction]
fn answer_pulls<'py>(
    py: Python<'py>,
    window: (PyBuffer<u8>, i64),
    bounds: (i64, i64, usize),
    asked: Vec<Bound<'py, PyAny>>,
) -> PyResult<Given<'py>> {
    let (memory_start, trusted_offset, enough_bytes) = bounds;
    let cells = cells_of(py, &window.0)?;
    let mut answers: Vec<(Vec<u8>, Slices)> = Vec::with_capacity(asked.len());
    let mut given = Vec::with_capacity(asked.len());
    let mut total = 0;
    for one in &asked {
        let (is_binary, opaque, units, offset, low, high, queue_id, alike): Asked<'py> =
            one.extract()?;
        let (topic, wanted, in_memory, on_disk, numbers) = &alike;
        if units.len() < UNIT_BYTES {
            break;
        }
        let lags = unit_long(&units[..8]) < memory_start;
        let picked = pick(
            &units,
            0,
            (cells, window.1),
            if lags { *on_disk } else { *in_memory },
            (0, 0),
            wanted.as_deref(),
            (&topic[..], queue_id, offset, trusted_offset),
        );
        let following = i64::try_from(picked.at)
            .ok()
            .and_then(|at| offset.checked_add(at));
        let following = match following {
            Some(following) if picked.at > 0 => following,
            _ => break,
        };
        if picked.is_outside || !picked.damaged.is_empty() {
            break;
        }
        let last = (picked.at - 1) * UNIT_BYTES;
        let is_slow = lags && unit_long(&units[last..last + 8]) < memory_start;
        let (code, remark) = if picked.count > 0 {
            (FOUND, "FOUND")
        } else {
            (NO_MATCH, "NO_MATCHED_MESSAGE")
        };
        let suggested = if is_slow { numbers.1 } else { numbers.0 };
        let numbers = (suggested, following, low, high, numbers.2, numbers.3);
        let fields = answer_fields_of(is_binary, numbers);
        let mut head = header(is_binary, opaque, code, Some(remark), &fields)?;
        let body_bytes: usize = picked.slices.iter().map(|(start, end)| end - start).sum();
        set_sizes(&mut head, is_binary, body_bytes)?;
        total += head.len() + body_bytes;
        answers.push((head, picked.slices));
        given.push((following, picked.count, picked.total));
        if total >= enough_bytes {
            break;
        }
    }
    let frames = PyBytes::new_with(py, total, |mut rest| {
        for (head, slices) in &answers {
            let (start, behind) = rest.split_at_mut(head.len());
            start.copy_from_slice(head);
            rest = behind;
            for (start, end) in slices {
                rest = copy_cells(rest, &cells[*start..*end]);
            }
        }
        Ok(())
    })?;
    Ok((frames, given))
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(pull_fields, module)?)?;
    module.add_function(wrap_pyfunction!(answer_fields, module)?)?;
    module.add_function(wrap_pyfunction!(record_values, module)?)?;
    module.add_function(wrap_pyfunction!(answer_pulls, module)?)?;
    module.add_function(wrap_pyfunction!(pull_answer, module)?)
}

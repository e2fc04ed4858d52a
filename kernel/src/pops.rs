//! The texts of POP in bulk; the twin of `plain/pops.py`.

use std::fmt::Write as _;
use std::io::Write as _;

use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use pyo3::types::{PyBytes, PyList};

use crate::answers::{frame, header, Field, Pieces};
use crate::frames::json::write_text;
use crate::pulls::{int, long, read};

const NAMES: [&str; 8] = [
    "topic",
    "consumerGroup",
    "extraInfo",
    "queueId",
    "offset",
    "lo",
    "nsd",
    "oway",
];

/// Topic and queue id; topic, group, queue id, start offset and pop time; queue offset; revive queue id.
type AckFields<'a> = (
    (&'a str, i64),
    (&'a str, &'a str, i64, i64, i64),
    i64,
    i64,
);

/// See `plain/pops.py`.
#[pyfunction]
fn ack_fields<'py>(
    py: Python<'py>,
    raw: &[u8],
    is_binary: bool,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    acknowledged(raw, is_binary)
        .map(|values| Ok(values.into_pyobject(py)?.into_any()))
        .transpose()
}

fn acknowledged(raw: &[u8], is_binary: bool) -> Option<AckFields<'_>> {
    let fields = read(raw, is_binary, &NAMES)?;
    let mut flags = fields.texts[5..].iter().flatten();
    if flags.any(|text| !matches!(*text, "true" | "false")) {
        return None;
    }
    let topic = fields.texts[0]?;
    let group = fields.texts[1]?;
    let mut receipt = fields.texts[2]?.split(' ');
    let start_offset = digits(receipt.next()?)?;
    let pop_time_ms = digits(receipt.next()?)?;
    is_digits(receipt.next()?).then_some(())?;
    let revive_queue_id = digits(receipt.next()?)?;
    receipt.next()?; // kind of topic, which any text may be
    receipt.next()?;
    let queue_id = fields.number(3, int)??;
    let offset = fields.number(4, long)??;
    Some((
        (topic, queue_id),
        (topic, group, queue_id, start_offset, pop_time_ms),
        offset,
        revive_queue_id,
    ))
}

/// `[0-9]{1,19}`.
fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.len() <= 19 && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn digits(text: &str) -> Option<i64> {
    is_digits(text).then(|| text.parse().ok())?
}

/// Queue offsets: a list, or a range without gaps.
enum Offsets {
    Range(i64, i64),
    List(Vec<i64>),
}

impl Offsets {
    fn of(value: &Bound<'_, PyAny>) -> PyResult<Self> {
        if !value.is_instance_of::<PyList>() {
            let py = value.py();
            let step = value.getattr(pyo3::intern!(py, "step"));
            if step.and_then(|step| step.extract::<i64>()).ok() == Some(1) {
                let start: i64 = value.getattr(pyo3::intern!(py, "start"))?.extract()?;
                let end: i64 = value.getattr(pyo3::intern!(py, "stop"))?.extract()?;
                return Ok(Offsets::Range(start, end.max(start)));
            }
        }
        let numbers: PyResult<Vec<i64>> = value
            .try_iter()?
            .map(|number| number?.extract::<i64>())
            .collect();
        Ok(Offsets::List(numbers?))
    }

    fn len(&self) -> usize {
        match self {
            Offsets::Range(start, end) => (end - start) as usize,
            Offsets::List(numbers) => numbers.len(),
        }
    }

    fn get(&self, at: usize) -> i64 {
        match self {
            Offsets::Range(start, _) => start + at as i64,
            Offsets::List(numbers) => numbers[at],
        }
    }

    /// The numbers minus `base`, separated by commas.
    fn joined(&self, base: i64) -> PyResult<String> {
        let mut text = String::with_capacity(self.len() * 8);
        for at in 0..self.len() {
            let number = self.get(at).checked_sub(base).ok_or_else(overflow)?;
            let mark = if at == 0 { "" } else { "," };
            let _ = write!(text, "{mark}{number}");
        }
        Ok(text)
    }
}

fn overflow() -> PyErr {
    PyOverflowError::new_err("a number of a checkpoint is too large")
}

type Part<'py> = (i64, i64, i64, Bound<'py, PyAny>);

/// See `plain/pops.py`.
#[pyfunction]
#[pyo3(signature = (opaque, code, remark, numbers, order_counts, parts, pieces))]
#[allow(clippy::too_many_arguments)] // Python's own is counted, too
fn pop_answer<'py>(
    py: Python<'py>,
    opaque: i32,
    code: i16,
    remark: &str,
    numbers: (i64, i64, i64, i64),
    order_counts: Option<&str>,
    parts: Vec<Part<'py>>,
    pieces: Pieces<'py>,
) -> PyResult<Bound<'py, PyBytes>> {
    let (invisible_ms, rest, pop_time_ms, revive_queue_id) = numbers;
    let mut starts = String::new();
    let mut offsets = String::new();
    for (kind, queue_id, start, numbers) in &parts {
        let mark = if starts.is_empty() { "" } else { ";" };
        let _ = write!(starts, "{mark}{kind} {queue_id} {start}");
        let numbers = Offsets::of(numbers)?.joined(0)?;
        let _ = write!(offsets, "{mark}{kind} {queue_id} {numbers}");
    }
    let fields = [
        ("invisibleTime", Field::Number(invisible_ms)),
        ("startOffsetInfo", Field::Text(&starts)),
        ("restNum", Field::Number(rest)),
        ("orderCountInfo", Field::Text(order_counts.unwrap_or(""))),
        ("popTime", Field::Number(pop_time_ms)),
        ("reviveQid", Field::Number(revive_queue_id)),
        ("msgOffsetInfo", Field::Text(&offsets)),
    ];
    let unordered = [
        fields[0], fields[1], fields[2], fields[4], fields[5], fields[6],
    ];
    let fields = if order_counts.is_some() {
        &fields[..]
    } else {
        &unordered[..]
    };
    let head = header(false, opaque, code, Some(remark), fields)?;
    frame(py, false, head, &pieces)
}

/// The fields of a checkpoint that both kinds of records have.
struct HandedOut {
    topic: PyBackedStr,
    group: PyBackedStr,
    queue_id: i64,
    start_offset: i64,
    pop_time_ms: i64,
    offsets: Offsets,
}

impl HandedOut {
    fn of(one: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = one.py();
        Ok(HandedOut {
            topic: one.getattr(pyo3::intern!(py, "topic"))?.extract()?,
            group: one.getattr(pyo3::intern!(py, "group"))?.extract()?,
            queue_id: one.getattr(pyo3::intern!(py, "queue_id"))?.extract()?,
            start_offset: one.getattr(pyo3::intern!(py, "start_offset"))?.extract()?,
            pop_time_ms: one.getattr(pyo3::intern!(py, "pop_time_ms"))?.extract()?,
            offsets: Offsets::of(&one.getattr(pyo3::intern!(py, "offsets"))?)?,
        })
    }
}

fn quote(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    write_text(out, text);
    out.push(b'"');
}

/// See `plain/pops.py`.
#[pyfunction]
fn checkpoint_bodies<'py>(
    py: Python<'py>,
    checkpoints: Vec<Bound<'py, PyAny>>,
    broker_name: &str,
) -> PyResult<Vec<Bound<'py, PyBytes>>> {
    let mut bodies = Vec::with_capacity(checkpoints.len());
    for one in &checkpoints {
        let out_of = HandedOut::of(one)?;
        let invisible_ms: i64 = one.getattr(pyo3::intern!(py, "invisible_ms"))?.extract()?;
        let acked: u128 = one.getattr(pyo3::intern!(py, "acked"))?.extract()?;
        let suspended: bool = one.getattr(pyo3::intern!(py, "suspended"))?.extract()?;
        let due_ms = out_of
            .pop_time_ms
            .checked_add(invisible_ms)
            .ok_or_else(overflow)?;
        let mut body: Vec<u8> = Vec::with_capacity(320);
        write!(body, "{{\"bm\":{},\"bn\":", acked as u32 as i32)?;
        quote(&mut body, broker_name);
        body.extend(b",\"c\":");
        quote(&mut body, &out_of.group);
        write!(
            body,
            ",\"d\":[{}],\"it\":{invisible_ms},\"n\":{},\"pt\":{},\"q\":{},\"reviveTime\":{due_ms},\"ro\":0,\
             \"so\":{},\"sp\":{suspended},\"t\":",
            out_of.offsets.joined(out_of.start_offset)?,
            out_of.offsets.len(),
            out_of.pop_time_ms,
            out_of.queue_id,
            out_of.start_offset,
        )?;
        quote(&mut body, &out_of.topic);
        body.push(b'}');
        bodies.push(PyBytes::new(py, &body));
    }
    Ok(bodies)
}

/// See `plain/pops.py`.
#[pyfunction]
fn ack_bodies<'py>(
    py: Python<'py>,
    done: Vec<(Bound<'py, PyAny>, u128)>,
    broker_name: &str,
) -> PyResult<Vec<(usize, Bound<'py, PyBytes>)>> {
    let mut bodies = Vec::with_capacity(done.len());
    for (one, bits) in &done {
        let out_of = HandedOut::of(one)?;
        let offsets: Vec<i64> = (0..out_of.offsets.len().min(128))
            .filter(|at| bits >> at & 1 == 1)
            .map(|at| out_of.offsets.get(at))
            .collect();
        let mut body: Vec<u8> = Vec::with_capacity(240);
        if let Some(first) = offsets.first() {
            let count = offsets.len();
            if count == 1 {
                write!(body, "{{\"ao\":{first},\"bn\":")?;
            } else {
                let offsets = Offsets::List(offsets.clone()).joined(0)?;
                write!(body, "{{\"ao\":-1,\"aol\":[{offsets}],\"bn\":")?;
            }
            quote(&mut body, broker_name);
            body.extend(b",\"c\":");
            quote(&mut body, &out_of.group);
            write!(
                body,
                ",\"pt\":{},\"q\":{},\"so\":{},\"t\":",
                out_of.pop_time_ms, out_of.queue_id, out_of.start_offset
            )?;
            quote(&mut body, &out_of.topic);
            body.push(b'}');
        }
        bodies.push((offsets.len(), PyBytes::new(py, &body)));
    }
    Ok(bodies)
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(ack_fields, module)?)?;
    module.add_function(wrap_pyfunction!(pop_answer, module)?)?;
    module.add_function(wrap_pyfunction!(checkpoint_bodies, module)?)?;
    module.add_function(wrap_pyfunction!(ack_bodies, module)?)
}

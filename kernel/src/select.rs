//! Which records of a queue a read returns; the twin of `plain/select.py`.
//!
//! The log is mapped memory that other calls append to, so it is read through cells: the head of a record field by
//! field. One whose checksum is wanted is copied, which costs less than the checksum does, and checked in the copy. A
//! call looks at no more units than a pull may (some hundreds, 0.2 us each), so the GIL is kept: giving it up for that
//! long costs more.

use pyo3::buffer::{PyBuffer, ReadOnlyCell};
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyTuple};

use crate::layout::{
    BORN_V6, FIXED_BYTES, HOST_V6_MORE_BYTES, LOG_OFFSET_AT, MAGIC_AT, MAGIC_V1, MAGIC_V2,
    QUEUE_ID_AT, QUEUE_OFFSET_AT, RECORD_BYTES_MIN, SLICE_BYTES, STORE_V6, SYS_FLAG_AT, UNIT_BYTES,
};
use crate::records::record_at;
use crate::sql::{Program, Scratch};

const EXTENSION_ADDRESS_MAX: i64 = -(1 << 31) - 1;

/// What a subscription selects: records with one of the tag codes for which an SQL program is true.
#[pyclass(frozen, module = "orbitmq_kernel")]
pub struct Filter {
    /// Sorted.
    tag_codes: Option<Vec<i64>>,
    program: Option<Program>,
}

#[pymethods]
impl Filter {
    #[new]
    #[pyo3(signature = (tag_codes=None, program=None))]
    fn new(tag_codes: Option<&Bound<'_, PyAny>>, program: Option<&[u8]>) -> PyResult<Self> {
        let tag_codes = match tag_codes {
            None => None,
            Some(codes) => {
                let codes: PyResult<Vec<i64>> = codes
                    .try_iter()?
                    .map(|code| code?.extract::<i64>())
                    .collect();
                let mut codes = codes?;
                codes.sort_unstable();
                Some(codes)
            }
        };
        let program = program
            .map(Program::parse)
            .transpose()
            .map_err(PyValueError::new_err)?;
        Ok(Filter { tag_codes, program })
    }

    #[getter]
    fn has_tags(&self) -> bool {
        self.tag_codes.is_some()
    }

    #[getter]
    fn node_count(&self) -> usize {
        self.program
            .as_ref()
            .map_or(0, |program| program.node_count)
    }

    fn matches_code(&self, tag_code: i64) -> bool {
        match &self.tag_codes {
            None => true,
            Some(codes) => {
                codes.binary_search(&tag_code).is_ok() || tag_code <= EXTENSION_ADDRESS_MAX
            }
        }
    }

    fn matches_properties(&self, properties: &[u8]) -> bool {
        match &self.program {
            None => true,
            Some(program) => program.selects(properties, &mut Scratch::default()),
        }
    }

    fn matches_record(&self, py: Python<'_>, record: PyBuffer<u8>) -> PyResult<bool> {
        let cells = cells_of(py, &record)?;
        Ok(self.matches(cells, &mut Vec::new(), &mut Scratch::default()))
    }
}

impl Filter {
    fn matches(
        &self,
        record: &[ReadOnlyCell<u8>],
        text: &mut Vec<u8>,
        scratch: &mut Scratch,
    ) -> bool {
        match &self.program {
            None => true,
            Some(program) => properties_at(record).map_or(false, |start| {
                text.clear();
                text.extend(record[start..].iter().map(ReadOnlyCell::get));
                program.selects(text, scratch)
            }),
        }
    }
}

pub fn cells_of<'a>(py: Python<'a>, buffer: &'a PyBuffer<u8>) -> PyResult<&'a [ReadOnlyCell<u8>]> {
    buffer
        .as_slice(py)
        .ok_or_else(|| PyBufferError::new_err("the buffer is not contiguous"))
}

fn number(cells: &[ReadOnlyCell<u8>]) -> u64 {
    cells
        .iter()
        .fold(0, |number, cell| number << 8 | u64::from(cell.get()))
}

/// Where the property text of a record begins, which ends with the record; None for what is not a record.
fn properties_at(record: &[ReadOnlyCell<u8>]) -> Option<usize> {
    let magic = number(record.get(MAGIC_AT..MAGIC_AT + 4)?) as u32;
    let sys_flag = number(record.get(SYS_FLAG_AT..SYS_FLAG_AT + 4)?) as i32;
    let mut at = FIXED_BYTES;
    at += if sys_flag & BORN_V6 == 0 {
        0
    } else {
        HOST_V6_MORE_BYTES
    };
    at += if sys_flag & STORE_V6 == 0 {
        0
    } else {
        HOST_V6_MORE_BYTES
    };
    at += number(record.get(at - 4..at)?) as usize;
    let topic_size_bytes = match magic {
        MAGIC_V1 => 1,
        MAGIC_V2 => 2,
        _ => return None,
    };
    at += topic_size_bytes + number(record.get(at..at + topic_size_bytes)?) as usize + 2;
    (at <= record.len()).then_some(at)
}

pub fn long(bytes: &[u8]) -> i64 {
    bytes
        .iter()
        .fold(0, |number, byte| number << 8 | u64::from(*byte)) as i64
}

type Selected<'py> = (
    usize,
    i64,
    i64,
    Bound<'py, PyBytes>,
    bool,
    Bound<'py, PyTuple>,
);

/// A part of the log, and the log offset it begins at.
pub type Window<'a> = (&'a [ReadOnlyCell<u8>], i64);

/// Of a queue: its topic, its number, the queue offset of unit 0, and from which log offset on records are trusted.
pub type Place<'a> = (&'a [u8], i64, i64, i64);

/// Which records of a queue are selected.
pub struct Picked {
    /// The first unit not looked at.
    pub at: usize,
    pub count: i64,
    pub total: i64,
    /// Where they begin and end in the window; neighbours share one.
    pub slices: Vec<(usize, usize)>,
    pub is_outside: bool,
    pub damaged: Vec<usize>,
}

/// Select records of consume queue units; see `plain/select.py`.
#[pyfunction]
#[pyo3(signature = (units, at, window, limits, taken, wanted, place))]
#[allow(clippy::too_many_arguments)] // Python's own is counted, too
fn select<'py>(
    py: Python<'py>,
    units: &[u8],
    at: usize,
    window: (PyBuffer<u8>, i64),
    limits: (i64, i64),
    taken: (i64, i64),
    wanted: Option<PyRef<'_, Filter>>,
    place: (PyBackedBytes, i64, i64, i64),
) -> PyResult<Selected<'py>> {
    let cells = cells_of(py, &window.0)?;
    let (topic, queue_id, first_offset, trusted_offset) = &place;
    let picked = pick(
        units,
        at,
        (cells, window.1),
        limits,
        taken,
        wanted.as_deref(),
        (topic, *queue_id, *first_offset, *trusted_offset),
    );
    let mut slices: Vec<u8> = Vec::with_capacity(picked.slices.len() * SLICE_BYTES);
    for (start, end) in picked.slices {
        slices.extend_from_slice(&(start as u64).to_be_bytes());
        slices.extend_from_slice(&(end as u64).to_be_bytes());
    }
    Ok((
        picked.at,
        picked.count,
        picked.total,
        PyBytes::new(py, &slices),
        picked.is_outside,
        PyTuple::new(py, picked.damaged)?,
    ))
}

/// What `select` does, without Python's values.
pub fn pick(
    units: &[u8],
    at: usize,
    window: Window<'_>,
    limits: (i64, i64),
    taken: (i64, i64),
    wanted: Option<&Filter>,
    place: Place<'_>,
) -> Picked {
    let (cells, window_offset) = window;
    let (topic, queue_id, first_offset, trusted_offset) = place;
    let (count_max, bytes_max) = limits;
    let mut picked = Picked {
        at,
        count: taken.0,
        total: taken.1,
        slices: Vec::new(),
        is_outside: false,
        damaged: Vec::new(),
    };
    let mut follows_from = i64::MAX;
    let mut copy: Vec<u8> = Vec::new();
    let mut scratch = Scratch::default();
    while picked.count < count_max {
        let at = picked.at;
        let unit = match units.get(at * UNIT_BYTES..(at + 1) * UNIT_BYTES) {
            Some(unit) => unit,
            None => break,
        };
        let log_offset = long(&unit[..8]);
        let size = long(&unit[8..12]) as u32 as i32;
        let (start, end) = match placed(log_offset, size, window_offset, cells.len()) {
            Some(found) => found,
            None => {
                picked.is_outside = true;
                break;
            }
        };
        let size = i64::from(size);
        if wanted.map_or(true, |filter| filter.matches_code(long(&unit[12..]))) {
            if picked.count > 0 && picked.total + size > bytes_max {
                break;
            }
            let number = i64::try_from(at)
                .ok()
                .and_then(|at| first_offset.checked_add(at));
            let record = &cells[start..end];
            let is_trusted = log_offset >= trusted_offset;
            let is_right = (is_trusted && log_offset >= follows_from)
                || (is_named(record, log_offset, queue_id, number)
                    && (is_trusted || is_whole(record, topic, &mut copy)));
            follows_from = if is_right {
                log_offset.saturating_add(size)
            } else {
                i64::MAX
            };
            if !is_right {
                picked.damaged.push(at);
            } else if wanted.map_or(true, |filter| {
                filter.matches(record, &mut copy, &mut scratch)
            }) {
                picked.count += 1;
                picked.total += size;
                match picked.slices.last_mut() {
                    Some(last) if last.1 == start => last.1 = end,
                    _ => picked.slices.push((start, end)),
                }
            }
        }
        picked.at += 1;
    }
    picked
}

/// Whether the head of a record is that of the message that a unit names.
fn is_named(
    record: &[ReadOnlyCell<u8>],
    log_offset: i64,
    queue_id: i64,
    queue_offset: Option<i64>,
) -> bool {
    if record.len() < RECORD_BYTES_MIN {
        return false;
    }
    let int = |at: usize| number(&record[at..at + 4]) as u32;
    let long = |at: usize| number(&record[at..at + 8]) as i64;
    matches!(int(MAGIC_AT), MAGIC_V1 | MAGIC_V2)
        && usize::try_from(int(0) as i32) == Ok(record.len())
        && long(LOG_OFFSET_AT) == log_offset
        && i64::from(int(QUEUE_ID_AT) as i32) == queue_id
        && Some(long(QUEUE_OFFSET_AT)) == queue_offset
}

/// Whether it is one whole record of a topic with an intact body.
fn is_whole(record: &[ReadOnlyCell<u8>], topic: &[u8], copy: &mut Vec<u8>) -> bool {
    copy.clear();
    copy.extend(record.iter().map(ReadOnlyCell::get));
    record_at(copy, 0, copy.len(), true, None)
        .map_or(false, |found| &copy[found.topic.0..found.topic.1] == topic)
}

/// Start and end of a record in the window; None when it is not within it.
fn placed(
    log_offset: i64,
    size: i32,
    window_offset: i64,
    window_bytes: usize,
) -> Option<(usize, usize)> {
    let start = usize::try_from(log_offset.checked_sub(window_offset)?).ok()?;
    let size = usize::try_from(size).ok().filter(|size| *size > 0)?;
    let end = start.checked_add(size)?;
    (end <= window_bytes).then_some((start, end))
}

// Python puts its objects at multiples of 16: what needs more would lie wrong in one.
const _: () = assert!(std::mem::align_of::<Filter>() <= 16);

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Filter>()?;
    module.add_function(wrap_pyfunction!(select, module)?)
}

//! The compiled twin of `orbitmq.kernel.plain`: same functions, same results, same error classes.
//!
//! The Python modules under `src/orbitmq/kernel/plain` are the definition; a case is added there first. Here every length is
//! checked before it is used, nothing panics on input, and nothing is kept between calls.
#![forbid(unsafe_code)]

use pyo3::prelude::*;

mod answers;
mod columns;
mod frames;
mod hashes;
mod index;
mod java_numbers;
mod layout;
mod pops;
mod properties;
mod pulls;
mod records;
mod select;
mod sends;
mod sql;

/// Raised by one whenever a function is added, or its signature or results change: `orbitmq.kernel.chosen` refuses any
/// other number, and a module that lacks one of the functions.
const API: u32 = 16;

#[pymodule]
fn orbitmq_kernel(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("API", API)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    answers::register(module)?;
    columns::register(module)?;
    hashes::register(module)?;
    index::register(module)?;
    records::register(module)?;
    frames::register(module)?;
    pops::register(module)?;
    pulls::register(module)?;
    sends::register(module)?;
    select::register(module)
}

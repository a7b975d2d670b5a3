//! The launcher's encoder of requests to fork a rank, for the comparison with the server's decoder.

use crate::python::rank::NumberedDescriptors;
use crate::run::zygote;
use crate::sys::process::affinity::CpuMask;
use crate::sys::process::lifeline::KillScope;
use crate::sys::process::spawn::{self, SpawnCommand};
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use std::ffi::CString;
use std::os::fd::{AsRawFd, BorrowedFd};

/// The bytes and the descriptors of a request. `fds`: stdin, stdout, stderr, lifeline, cgroup.
#[pyfunction]
pub fn encode_fork_request(
    argv: Vec<Vec<u8>>,
    envp: Vec<Vec<u8>>,
    cwd: Option<Vec<u8>>,
    nofile: Option<u64>,
    cpus: Option<Vec<u16>>,
    fds: [Option<i32>; 5],
) -> PyResult<(Vec<u8>, Vec<i32>)> {
    let [stdin, stdout, stderr, lifeline, cgroup] = fds;
    let command = SpawnCommand {
        cwd: cwd.map(CString::new).transpose()?,
        mask: spawn::current_mask(),
        nofile,
        affinity: cpus.map(|cpus| CpuMask::of(&cpus.into_iter().collect())),
        ..SpawnCommand::new("", argv, envp)?
    };
    let lifeline = lifeline.map(|fd| (fd, KillScope::Group));
    let numbers = NumberedDescriptors { stdio: [stdin, stdout, stderr], keep: Vec::new(), cgroup, lifeline };
    let copies = numbers.duplicate().map_err(|error| PyOSError::new_err(error.errno))?;
    let descriptors = copies.borrow();
    let (bytes, sent) = zygote::encode(&command, &descriptors);
    let copied = [descriptors.stdio.as_slice(), &[descriptors.lifeline.map(|(fd, _)| fd), descriptors.cgroup]].concat();
    let number_of = |sent: &BorrowedFd<'_>| {
        let is_sent = |copy: &Option<BorrowedFd<'_>>| copy.is_some_and(|copy| copy.as_raw_fd() == sent.as_raw_fd());
        copied.iter().position(is_sent).and_then(|index| fds[index]).unwrap_or(-1)
    };
    Ok((bytes, sent.iter().map(number_of).collect()))
}

//! The launcher's encoder of requests to fork a rank, for the comparison with the server's decoder.

use crate::python::rank::NumberedDescriptors;
use crate::run::zygote;
use crate::sys::process::affinity::CpuMask;
use crate::sys::process::lifeline::KillScope;
use crate::sys::process::spawn::{self, ProcessGroup, SpawnCommand};
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use std::ffi::CString;
use std::os::fd::AsRawFd;

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
        program: CString::default(),
        argv: spawn::c_strings(argv)?,
        envp: spawn::c_strings(envp)?,
        group: ProcessGroup::Session,
        cwd: cwd.map(CString::new).transpose()?,
        detached: false,
        mask: spawn::current_mask(),
        nofile,
        affinity: cpus.map(|cpus| CpuMask::of(&cpus.into_iter().collect())),
        default_sigpipe: true,
    };
    let lifeline = lifeline.map(|fd| (fd, KillScope::Group));
    let numbers = NumberedDescriptors { stdio: [stdin, stdout, stderr], keep: Vec::new(), cgroup, lifeline };
    let descriptors = numbers.borrow().map_err(|error| PyOSError::new_err(error.errno))?;
    let (bytes, sent) = zygote::encode(&command, &descriptors);
    Ok((bytes, sent.iter().map(AsRawFd::as_raw_fd).collect()))
}

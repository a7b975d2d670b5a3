//! The start of a rank: opens its files, and starts its program or has it forked from the preload server.

use super::RankProcesses;
use super::prepared_rank::PreparedRank;
use super::start_error::RankStartError;
use crate::model::ProcessLabel;
use crate::plan::Stream;
use crate::probe::limits::refusal;
use crate::run::engine::{AttemptState, RankStart, StartError};
use crate::run::launch::STOP_SLOT;
use crate::run::output::rank_streams;
use crate::run::output::uncaught_file::{self, UncaughtFile};
use crate::run::rank_state::RankState;
use crate::run::record::journal_event::JournalEvent;
use crate::run::sweep;
use crate::run::tokens::ZYGOTE;
use crate::run::zygote::{ForkProgress, ForkedStartError};
use crate::supervise::ChildId;
use crate::sys::process::affinity::CpuMask;
use crate::sys::process::child::Child;
use crate::sys::process::lifeline::Lifeline;
use crate::sys::process::procfs::stat::ProcStat;
use crate::sys::process::spawn;
use crate::sys::process::spawn::{SpawnCommand, SpawnedProcess};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::sync::Arc;
use tracing::warn;

fn step_error((rank, program): (ProcessLabel, &Path), step: &str, source: io::Error) -> RankStartError {
    let reason = refusal::reason(&source);
    RankStartError::Step { rank, program: program.to_owned(), step: step.to_owned(), source, reason }
}

impl RankProcesses<'_> {
    /// Starts the program of a rank, or requests a fork from the preload server.
    pub(super) fn begin_start(&mut self, id: ChildId) -> Result<RankStart, RankStartError> {
        let prepared = self.prepare_rank(id)?;
        let fork = match &self.launch.zygote {
            Some(zygote) => {
                let descriptors = prepared.descriptors(self.cgroup.as_ref());
                zygote.request_fork((&prepared.command, &descriptors), &self.poll, ZYGOTE.0)
            }
            None => Ok(ForkProgress::WithoutServer),
        };
        self.advance_start(id, prepared, fork)
    }

    /// Continues the pending start of a rank.
    pub(super) fn continue_fork(&mut self, id: ChildId, attempt: AttemptState) -> Result<RankStart, RankStartError> {
        let Some(prepared) = self.pending.take() else { return self.begin_start(id) };
        let fork = match &self.launch.zygote {
            Some(zygote) => zygote.receive_fork(&self.poll, attempt),
            None => Ok(ForkProgress::WithoutServer),
        };
        self.advance_start(id, prepared, fork)
    }

    fn advance_start(
        &mut self,
        id: ChildId,
        mut prepared: PreparedRank,
        fork: Result<ForkProgress, ForkedStartError>,
    ) -> Result<RankStart, RankStartError> {
        let started = match fork {
            Ok(ForkProgress::Pending) => {
                self.pending = Some(prepared);
                return Ok(RankStart::Pending);
            }
            Ok(ForkProgress::Forked(process)) => process,
            Ok(ForkProgress::WithoutServer) => self.exec(id, &prepared)?,
            // The server may have forked the rank without a reply. That process dies with its lifeline.
            Err(ForkedStartError::FallBack(failure)) => {
                self.lifelines[id.local_rank] = None;
                self.listener.preload_abandoned(&failure.to_string());
                let lifeline = prepared.renew_lifeline().map_err(|source| self.step_error(id, "lifeline", source))?;
                self.lifelines[id.local_rank] = Some(lifeline);
                self.exec(id, &prepared)?
            }
            Err(source) => {
                self.lifelines[id.local_rank] = None;
                return Err(RankStartError::Forked { rank: self.label(id), source });
            }
        };
        let PreparedRank { streams, .. } = prepared;
        let log_start = streams.written.first().map_or(0, |log| log.start);
        if let Some(words) = &self.stop_words {
            words.set_rank(id.local_rank, started.pid);
        }
        self.processes[id.local_rank] = RankState {
            pid: Some(started.pid),
            // It is not reaped yet, so its number is its own.
            started: ProcStat::of(started.pid).map_or(0, |stat| stat.started),
            attempt: id.attempt,
            log_start,
            ..RankState::default()
        };
        for log in &streams.written {
            self.routing.follow(id, log);
        }
        Ok(RankStart::Started(Arc::new(Child::new(started.pid, started.pidfd, true))))
    }

    fn exec(&self, id: ChildId, prepared: &PreparedRank) -> Result<SpawnedProcess, RankStartError> {
        spawn::start(&prepared.command, &prepared.descriptors(self.cgroup.as_ref()))
            .map_err(|error| self.step_error(id, error.step, io::Error::from_raw_os_error(error.errno)))
    }

    fn step_error(&self, id: ChildId, step: &str, source: io::Error) -> RankStartError {
        step_error((self.label(id), &self.launch.program), step, source)
    }

    /// Notes a start that has succeeded or failed.
    pub(super) fn report_start(
        &mut self,
        id: ChildId,
        start: Result<RankStart, RankStartError>,
    ) -> Result<RankStart, StartError> {
        let (ProcessLabel { role, number: rank }, attempt) = (self.label(id), id.attempt);
        let why = start.as_ref().err().map(RankStartError::to_string).unwrap_or_default();
        self.journal.write_later(match &start {
            Ok(RankStart::Pending) => return Ok(RankStart::Pending),
            Ok(RankStart::Started(child)) => {
                self.listener.started(id, child.pid());
                let logs = self.logs_of(id.local_rank, attempt);
                let logs = (logs, self.processes[id.local_rank].log_start);
                self.launch.status.rank_started(id.local_rank, (attempt, child.pid()), logs);
                JournalEvent::RankStarted { role, rank, local_rank: id.local_rank, attempt, pid: child.pid() }
            }
            Err(_) => JournalEvent::RankNotStarted { role, rank, local_rank: id.local_rank, attempt, why: &why },
        });
        Ok(start?)
    }

    /// Opens the files of a rank.
    fn prepare_rank(&mut self, id: ChildId) -> Result<PreparedRank, RankStartError> {
        let plan = &self.launch.plan.ranks[id.local_rank];
        let (rank, program) = (self.label(id), self.launch.program.clone());
        let step = |step: &str, source| step_error((rank, &program), step, source);
        let nul = |source| RankStartError::Nul { rank, program: program.clone(), source };
        self.store.check().map_err(|source| RankStartError::Store { rank, program: program.clone(), source })?;
        // The logs of an earlier attempt have been moved away.
        let overwrite = self.launch.log_overwrite && id.attempt == 0;
        let mut opened = rank_streams::open(&self.launch.log_dir, plan, id.attempt, overwrite)
            .map_err(|error| step(&error.path.display().to_string(), error.source))?;
        if let Some(error) =
            opened.not_captured.take().filter(|_| !std::mem::replace(&mut self.said_not_captured, true))
        {
            let way_out = "Let TMPDIR name a folder with space, or raise `ulimit -f`";
            warn!("{error}; stderr is shown, but no failure report can quote it. {way_out}");
        }
        if let Some(rotation) = &mut self.rotation {
            for log in opened.written.iter_mut().filter(|log| log.rotates) {
                let added = rotation.add(id.local_rank, &log.path, overwrite);
                log.rotated = Some(added.map_err(|source| step("--log_max_size", source))?);
            }
        }
        for stream in Stream::BOTH {
            let console = self.routing.terminal(id, stream).cloned();
            // A process that outlives the launcher could not write to a pipe any more.
            let has_pipe = !self.launch.no_sweep.has_names()
                && opened.written.iter().any(|log| log.stream == stream && log.is_captured);
            if console.is_some() || has_pipe {
                self.outputs.extend(opened.copy_to_log(stream, console).map(|output| (id.local_rank, output)));
            }
        }
        let (lifeline, end) = Lifeline::open().map_err(|source| step("lifeline", source))?;
        self.lifelines[id.local_rank] = Some(lifeline);
        let mut env = plan.env_of(id.attempt);
        env.set(sweep::KEY, sweep::rank_key(&self.launch.job_key, id.attempt, id.local_rank));
        for (name, value) in self.launch.round_env(id.attempt) {
            env.set(name, value);
        }
        if let Some(words) = &self.stop_words {
            words.begin_rank(id.local_rank);
            if self.launch.preempt_link.notice().is_none() {
                // The SIGTERM that ended the attempt before is no notice.
                words.clear_end();
            }
            env.set(STOP_SLOT, words.address(id.local_rank));
        }
        // Without it the end of the rank is read from its output alone.
        let uncaught_file = &mut self.uncaught_files[id.local_rank];
        *uncaught_file = uncaught_file.take().map_or_else(UncaughtFile::new, UncaughtFile::emptied).ok();
        if let Some(file) = uncaught_file {
            env.set(uncaught_file::VARIABLE, file.path());
        }
        let env = env.apply(&self.base).into_iter().map(|(name, value)| [name, value].join(&b'='));
        let argv = plan.argv.iter().map(|word| word.clone().into_vec());
        let command = SpawnCommand {
            mask: self.mask,
            nofile: self.launch.nofile,
            affinity: plan.cpus.as_ref().map(CpuMask::of),
            ..SpawnCommand::new(program.as_os_str().as_encoded_bytes(), argv.collect(), env.collect()).map_err(nul)?
        };
        Ok(PreparedRank { command, streams: opened, lifeline: end })
    }
}

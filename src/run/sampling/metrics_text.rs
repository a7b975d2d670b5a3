//! The state of a job in Prometheus's text format (0.0.4), which node_exporter's textfile collector reads.

use crate::report::job_status::{JobStatus, LaunchPhase, RankStatus};
use crate::run::control::rank_facts::RankFacts;
use std::fmt::{Display, Write};

const PHASES: [LaunchPhase; 5] =
    [LaunchPhase::Preparing, LaunchPhase::Running, LaunchPhase::Stopping, LaunchPhase::Restarting, LaunchPhase::Ended];

/// Labels of a sample.
type Labels<'a> = &'a [(&'a str, &'a dyn Display)];

/// The text under construction.
struct Metrics {
    text: String,
    /// The labels that all samples have.
    job: String,
}

impl Metrics {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: Labels<'_>, value: impl Display) {
        let labels = [self.job.clone()].into_iter().chain(labels.iter().map(|(name, value)| label(name, value)));
        let _ = writeln!(self.text, "{name}{{{}}} {value}", labels.collect::<Vec<_>>().join(","));
    }

    fn gauge(&mut self, name: &str, help: &str, value: Option<impl Display>) {
        if let Some(value) = value {
            self.family(name, "gauge", help);
            self.sample(name, &[], value);
        }
    }

    /// A family with a sample for each rank that has a value.
    fn ranks<T: Display>(
        &mut self,
        (name, kind, help): (&str, &str, &str),
        ranks: &[(&RankStatus, &RankFacts)],
        value: impl Fn(&RankStatus, &RankFacts) -> Option<T>,
    ) {
        let values: Vec<_> = ranks.iter().filter_map(|(rank, facts)| Some((rank, value(rank, facts)?))).collect();
        if !values.is_empty() {
            self.family(name, kind, help);
        }
        for (rank, value) in values {
            self.sample(name, &[("role", &rank.role), ("rank", &rank.rank)], value);
        }
    }
}

fn label(name: &str, value: &dyn Display) -> String {
    let value = value.to_string().replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    format!("{name}=\"{value}\"")
}

/// The text. `facts`: in the order of the ranks, or empty.
pub(super) fn render(status: &JobStatus, facts: &[RankFacts], exit_status: Option<i32>) -> String {
    // Two jobs of one name may run on a machine, and the collector refuses a sample that two files have.
    let job = format!("{},{}", label("job_id", &status.job_id), label("launcher", &status.launcher));
    let mut metrics = Metrics { text: String::new(), job };
    let alive = status.ranks.iter().filter(|rank| rank.is_alive()).count();
    let log_dir = status.log_dir.display();
    metrics.family("rlaunch_job_info", "gauge", "The job; the value is 1.");
    metrics.sample("rlaunch_job_info", &[("host", &status.host), ("log_dir", &log_dir)], 1);
    metrics.family("rlaunch_job_phase", "gauge", "1 for what the launcher does, 0 for the other phases.");
    for phase in PHASES {
        let value = u8::from(phase == status.phase);
        metrics.sample("rlaunch_job_phase", &[("phase", &phase.word())], value);
    }
    let hangs = u8::from(status.hanging_since.is_some());
    let started = (status.started > 0.0).then_some(status.started);
    metrics.gauge("rlaunch_job_start_time_seconds", "When the launcher was started, in seconds since 1970.", started);
    metrics.gauge("rlaunch_job_attempt", "The present attempt; 0 is the first.", Some(status.attempt));
    metrics.gauge("rlaunch_job_round", "The round of a job whose nodes rendezvous.", status.round);
    metrics.family("rlaunch_job_restarts_total", "counter", "Restarts of the ranks of this node.");
    metrics.sample("rlaunch_job_restarts_total", &[], status.attempt);
    metrics.gauge("rlaunch_job_hangs", "1 from the report of a hang on until something moves.", Some(hangs));
    metrics.gauge("rlaunch_job_exit_status", "The exit status of the launcher, once it is known.", exit_status);
    metrics.gauge("rlaunch_ranks", "Ranks of this node.", Some(status.ranks.len()));
    metrics.gauge("rlaunch_ranks_running", "Ranks of this node that run.", Some(alive));
    let none = RankFacts::default();
    let ranks: Vec<_> =
        status.ranks.iter().enumerate().map(|(number, rank)| (rank, facts.get(number).unwrap_or(&none))).collect();
    let up = |rank: &RankStatus, _: &RankFacts| Some(u8::from(rank.is_alive()));
    metrics.ranks(("rlaunch_rank_up", "gauge", "Whether the process of the rank runs."), &ranks, up);
    let cpu =
        ("rlaunch_rank_cpu_seconds_total", "counter", "CPU time of the rank and the processes that it has started.");
    metrics.ranks(cpu, &ranks, |_, facts| facts.cpu_seconds);
    let memory = (
        "rlaunch_rank_memory_bytes",
        "gauge",
        "Memory of these processes; pages that several share are divided among them.",
    );
    metrics.ranks(memory, &ranks, |_, facts| facts.memory_bytes);
    let processes = ("rlaunch_rank_processes", "gauge", "The number of these processes.");
    metrics.ranks(processes, &ranks, |_, facts| (facts.processes > 0).then_some(facts.processes));
    let output = ("rlaunch_rank_last_output_seconds", "gauge", "Seconds since the rank's last output.");
    metrics.ranks(output, &ranks, |rank, facts| facts.silent_seconds.filter(|_| rank.is_alive()));
    let gpu = ("rlaunch_rank_gpu_percent", "gauge", "GPUs in use, in percent of one.");
    metrics.ranks(gpu, &ranks, |_, facts| facts.gpu_percent);
    let gpu_memory = ("rlaunch_rank_gpu_memory_bytes", "gauge", "Memory on all GPUs.");
    metrics.ranks(gpu_memory, &ranks, |_, facts| facts.gpu_memory_bytes);
    metrics.text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_values_are_escaped() {
        let status = JobStatus { job_id: "a\\b\"c\nd".into(), launcher: 7, ..JobStatus::default() };
        let text = render(&status, &[], Some(3));
        assert!(text.contains("rlaunch_job_exit_status{job_id=\"a\\\\b\\\"c\\nd\",launcher=\"7\"} 3\n"), "{text}");
        assert!(text.contains("launcher=\"7\",phase=\"preparing\"} 1\n"), "{text}");
    }

    #[test]
    fn a_rank_has_the_values_that_are_known() {
        let rank = RankStatus { rank: 4, pid: Some(9), ..RankStatus::default() };
        let status = JobStatus { ranks: vec![rank], ..JobStatus::default() };
        let facts = [RankFacts { cpu_seconds: Some(1.5), processes: 2, ..RankFacts::default() }];
        let text = render(&status, &facts, None);
        assert!(
            text.contains("rlaunch_rank_cpu_seconds_total{job_id=\"\",launcher=\"0\",role=\"rank\",rank=\"4\"} 1.5\n")
        );
        assert!(!text.contains("gpu") && !text.contains("exit_status"), "{text}");
    }
}

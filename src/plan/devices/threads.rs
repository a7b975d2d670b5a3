//! OMP_NUM_THREADS: number of OpenMP threads of each rank.

use std::fmt;

/// CPU quota of a cgroup: CPU time that it may use in each period, both in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuQuota {
    /// Time on all CPUs together.
    pub time: u64,
    /// Length of the period, not 0.
    pub period: u64,
}

impl CpuQuota {
    /// Whole CPUs of the quota for each of this number of ranks.
    fn share(self, among: usize) -> usize {
        let period = u128::from(self.period).saturating_mul(among as u128).max(1);
        usize::try_from(u128::from(self.time) / period).unwrap_or(usize::MAX)
    }

    /// Whether it is worth less than this number of CPUs.
    pub fn is_below_cpus(self, cpus: usize) -> bool {
        self.share(cpus) == 0 && cpus > 0
    }

    /// Whether it allows less CPU time than `other`.
    pub fn is_below(self, other: Self) -> bool {
        u128::from(self.time) * u128::from(other.period) < u128::from(other.time) * u128::from(self.period)
    }
}

impl fmt::Display for CpuQuota {
    /// In CPUs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cpus = self.time as f64 / self.period.max(1) as f64;
        write!(f, "{}", (cpus * 100.0).round() / 100.0)
    }
}

/// CPU limits of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuLimits {
    /// Number of CPUs in the affinity mask.
    pub allowed: usize,
    /// The smallest quota of its cgroups.
    pub quota: Option<CpuQuota>,
}

impl CpuLimits {
    /// OMP_NUM_THREADS for each of `ranks` local ranks: the CPUs divided by the ranks, at least 1.
    pub fn threads(&self, ranks: usize) -> usize {
        let ranks = ranks.max(1);
        let quota = self.quota.map_or(usize::MAX, |quota| quota.share(ranks));
        (self.allowed / ranks).min(quota).max(1)
    }

    /// The message for the user.
    pub fn note(&self, ranks: usize) -> String {
        let plural = |n: usize| if n == 1 { "" } else { "s" };
        let quota = self.quota.filter(|quota| quota.share(1) < self.allowed);
        let quota = quota.map_or(String::new(), |quota| format!(" with a cgroup quota worth {quota}"));
        format!(
            "OMP_NUM_THREADS={} for each rank: {} allowed CPU{}{quota}, {ranks} local rank{}; set OMP_NUM_THREADS to override",
            self.threads(ranks),
            self.allowed,
            plural(self.allowed),
            plural(ranks),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpus(allowed: usize, quota: Option<(u64, u64)>) -> CpuLimits {
        CpuLimits { allowed, quota: quota.map(|(time, period)| CpuQuota { time, period }) }
    }

    #[test]
    fn cpus_are_divided_among_the_ranks() {
        for (allowed, quota, ranks, threads) in [
            (8, None, 1, 8),
            (8, None, 3, 2),
            (2, None, 4, 1),
            (8, Some((400_000, 100_000)), 2, 2),
            (8, Some((350_000, 100_000)), 1, 3),
            (8, Some((350_000, 100_000)), 2, 1),
            (8, Some((50_000, 100_000)), 1, 1),
            (2, Some((1_600_000, 100_000)), 1, 2),
            (0, None, 0, 1),
            (usize::MAX, Some((u64::MAX, 1)), 1, u64::MAX as usize),
            (8, Some((1, u64::MAX)), usize::MAX, 1),
        ] {
            assert_eq!(cpus(allowed, quota).threads(ranks), threads, "{allowed} {quota:?} {ranks}");
        }
    }

    #[test]
    fn quotas_are_compared_by_cpus() {
        let quota = |time, period| CpuQuota { time, period };
        assert!(quota(50_000, 100_000).is_below(quota(20_000, 20_000)));
        assert!(!quota(20_000, 20_000).is_below(quota(100_000, 100_000)));
        assert!(!quota(u64::MAX, 1).is_below(quota(u64::MAX - 1, 1)));
    }

    #[test]
    fn the_note_names_the_limits() {
        let end = "; set OMP_NUM_THREADS to override";
        let note = |cpus: CpuLimits, ranks| cpus.note(ranks).strip_suffix(end).map(str::to_owned).unwrap_or_default();
        assert_eq!(note(cpus(16, None), 2), "OMP_NUM_THREADS=8 for each rank: 16 allowed CPUs, 2 local ranks");
        assert_eq!(
            note(cpus(16, Some((350_000, 100_000))), 1),
            "OMP_NUM_THREADS=3 for each rank: 16 allowed CPUs with a cgroup quota worth 3.5, 1 local rank"
        );
        assert_eq!(
            note(cpus(1, Some((350_000, 100_000))), 2),
            "OMP_NUM_THREADS=1 for each rank: 1 allowed CPU, 2 local ranks"
        );
    }
}

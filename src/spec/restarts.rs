//! The options about restarts: `--max_restart`, `--restart_on`, `--restart_delay` and so on.

use crate::model::exit::signal_number;
use crate::spec::error::SpecError;
use crate::spec::options::OptValues;
use std::collections::BTreeSet;
use std::time::Duration;

/// When a failed job is started again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestartSpec {
    /// Maximum number of restarts; 0: none.
    pub max_restart: u32,
    /// Whether the user gave `max_restart`.
    pub is_given: bool,
    /// The exit statuses that allow a restart, as a shell shows them (128 + N for signal N). `None`: any.
    pub restart_on: Option<BTreeSet<i32>>,
    /// The exit statuses that prevent a restart.
    pub never_restart_on: BTreeSet<i32>,
    /// The delay before the first restart; it doubles with each further one.
    pub delay: Duration,
    /// The maximum delay.
    pub delay_max: Duration,
    /// The time after which a restart no longer counts. `None`: all count.
    pub window: Option<Duration>,
    /// Number of identical failures of one rank in a row after which there is no restart.
    pub same_failure_limit: Option<u32>,
}

/// Reads and checks the options.
pub fn check(values: &OptValues) -> Result<RestartSpec, SpecError> {
    let delay = duration(values, "restart_delay")?.unwrap_or_default();
    let most = duration(values, "restart_delay_max")?.unwrap_or_default();
    if most < delay && values.given("restart_delay_max").is_some() {
        return Err(values.error("restart_delay_max", "is less than --restart_delay", "give as much or more"));
    }
    let window = duration(values, "restart_window")?;
    if window.is_some_and(|window| window.is_zero()) {
        return Err(values.error(
            "restart_window",
            "is not a positive number of seconds",
            "give more than 0, or leave it out to count all",
        ));
    }
    let same_failure_limit = count(values, "same_failure_limit")?;
    if same_failure_limit == Some(0) {
        return Err(values.error("same_failure_limit", "must be 1 or more", "give 1 or more"));
    }
    let restarts = RestartSpec {
        max_restart: count(values, "max_restart")?.unwrap_or(0),
        is_given: values.given("max_restart").is_some(),
        restart_on: statuses(values, "restart_on")?,
        never_restart_on: statuses(values, "never_restart_on")?.unwrap_or_default(),
        delay,
        delay_max: most.max(delay),
        window,
        same_failure_limit,
    };
    refuse_without_restarts(values)?;
    Ok(restarts)
}

/// Refuses options about restarts on a command line without `--max_restart`, which is a mistake. Variables are
/// accepted, because they may be set for all jobs of a machine.
fn refuse_without_restarts(values: &OptValues) -> Result<(), SpecError> {
    const HOW: [&str; 6] = [
        "restart_on",
        "never_restart_on",
        "restart_delay",
        "restart_delay_max",
        "restart_window",
        "same_failure_limit",
    ];
    let said = |name: &&str| values.on_command_line(name).is_some_and(|text| !text.trim().is_empty());
    // This level restarts after failures without --max_restart.
    let elastic =
        values.text("elastic_level").and_then(|text| text.trim().parse::<i64>().ok()).is_some_and(|level| level > 0);
    match HOW.iter().find(|name| said(name)) {
        Some(name) if values.given("max_restart").is_none() && !elastic => {
            Err(values.error(name, "has no effect without --max_restart", "give a number of restarts"))
        }
        _ => Ok(()),
    }
}

fn duration(values: &OptValues, name: &str) -> Result<Option<Duration>, SpecError> {
    Ok(values.seconds(name)?.map(Duration::from_secs_f64))
}

fn count(values: &OptValues, name: &str) -> Result<Option<u32>, SpecError> {
    let Some(number) = values.int(name)? else { return Ok(None) };
    u32::try_from(number).map(Some).map_err(|_| values.error(name, "is not a number of times", "give 0 or more"))
}

/// Reads exit statuses such as `1,137,SIGKILL`. An empty text means none, so that a variable can be emptied.
fn statuses(values: &OptValues, name: &str) -> Result<Option<BTreeSet<i32>>, SpecError> {
    let Some(text) = values.text(name).filter(|text| !text.trim().is_empty()) else { return Ok(None) };
    let status = |word: &str| match word.parse::<i32>() {
        Ok(code) => (1..=255).contains(&code).then_some(code),
        Err(_) => signal_number(word).map(|signal| 128 + signal),
    };
    text.split(',')
        .map(|word| {
            status(word.trim()).ok_or_else(|| {
                let why = format!("'{}' is not an exit status of a failure", crate::spec::error::shown(word.trim()));
                values.error(name, &why, "give numbers from 1 to 255 or signal names, such as 1,SIGKILL")
            })
        })
        .collect::<Result<_, _>>()
        .map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::options::EnvVars;
    use crate::spec::paddle::options::merge;

    /// Reads the options, with `--max_restart 9` by default.
    fn read(flags: &[(&'static str, &str)]) -> Result<RestartSpec, String> {
        let nine = [("max_restart", "9")];
        read_alone(&[&nine, flags].concat(), &[])
    }

    fn read_alone(flags: &[(&'static str, &str)], vars: &[(&str, &str)]) -> Result<RestartSpec, String> {
        let flags = flags.iter().map(|(name, text)| (*name, (*text).to_owned())).collect();
        let vars: EnvVars = vars.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
        check(&merge(&flags, &vars)).map_err(|error| error.to_string())
    }

    #[test]
    fn without_options_nothing_is_restarted() {
        let plain = read_alone(&[], &[]).unwrap();
        let second = Duration::from_secs(1);
        assert_eq!((plain.max_restart, plain.delay, plain.delay_max), (0, second, 60 * second));
        assert_eq!((plain.restart_on, plain.window, plain.same_failure_limit), (None, None, None));
        assert_eq!(read(&[("restart_on", " ")]).unwrap().restart_on, None);
    }

    #[test]
    fn how_to_restart_is_refused_where_nothing_is_restarted() {
        for (name, text) in [
            ("restart_on", "1"),
            ("never_restart_on", "1"),
            ("restart_delay", "1"),
            ("restart_delay_max", "60"),
            ("restart_window", "60"),
            ("same_failure_limit", "2"),
        ] {
            let why = format!("--{name} {text}: has no effect without --max_restart; give a number of restarts");
            assert_eq!(read_alone(&[(name, text)], &[]), Err(why));
            // An explicit 0 turns off what a script has, and a variable may hold for all jobs.
            assert_eq!(read_alone(&[(name, text), ("max_restart", "0")], &[]).unwrap().max_restart, 0);
            assert!(read_alone(&[(name, text)], &[("PADDLE_MAX_RESTART", "0")]).is_ok());
            let var = format!("RLAUNCH_{}", name.to_uppercase());
            assert!(read_alone(&[], &[(&var, text)]).is_ok());
        }
        assert!(read_alone(&[("restart_on", " ")], &[]).is_ok());
    }

    #[test]
    fn statuses_are_numbers_and_names_of_signals() {
        let lists = read(&[("restart_on", "1, 137,SIGTERM,usr1"), ("never_restart_on", "9")]).unwrap();
        assert_eq!(lists.restart_on, Some([1, 137, 143, 138].into()));
        assert_eq!(lists.never_restart_on, [9].into(), "a bare number is a code");
    }

    #[test]
    fn a_long_delay_raises_the_most_unless_that_is_given() {
        assert_eq!(read(&[("restart_delay", "90")]).unwrap().delay_max, Duration::from_secs(90));
        assert_eq!(
            read(&[("restart_delay", "9"), ("restart_delay_max", "9")]).unwrap().delay_max,
            Duration::from_secs(9)
        );
    }

    #[test]
    fn what_cannot_be_meant_is_refused_with_its_value() {
        for (name, text, why) in [
            ("max_restart", "-1", "--max_restart -1: is not a number of times"),
            ("max_restart", "9999999999", "--max_restart 9999999999: is not a number of times"),
            ("restart_on", "1,,2", "--restart_on 1,,2: '' is not an exit status of a failure"),
            ("restart_on", "0", "--restart_on 0: '0' is not an exit status of a failure"),
            ("restart_on", "256", "'256'"),
            ("never_restart_on", "SIGNOPE", "--never_restart_on SIGNOPE: 'SIGNOPE'"),
            ("restart_delay", "-1", "--restart_delay -1: is not a number of seconds"),
            ("restart_delay_max", "0.5", "--restart_delay_max 0.5: is less than --restart_delay"),
            ("restart_window", "0", "--restart_window 0: is not a positive number of seconds"),
            ("same_failure_limit", "0", "--same_failure_limit 0: must be 1 or more"),
        ] {
            let error = read(&[(name, text)]).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }
}

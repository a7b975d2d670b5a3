//! TLS towards etcd: certificates, and what its errors mean.

use crate::rendezvous::etcd::config::EtcdTls;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{AlertDescription, ClientConfig, Error, RootCertStore};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// The files of TLS, and the configuration that was read from them last. They are read again when they have changed, because
/// short-lived certificates are renewed while a job runs.
#[derive(Debug)]
pub struct TlsFiles {
    files: EtcdTls,
    latest: Mutex<Latest>,
}

#[derive(Debug)]
struct Latest {
    config: Arc<ClientConfig>,
    /// The state of the files before they were read.
    read: Vec<Option<FileStamp>>,
    /// The same of those that could not be used, and were reported.
    reported: Vec<Option<FileStamp>>,
}

/// What tells a file from the one that was there before: device, inode, size, and the time of its last change (s, ns).
type FileStamp = (u64, u64, u64, i64, i64);

impl TlsFiles {
    /// Reads the files. Without one of authorities, the machine's are trusted.
    pub fn read(files: Option<&EtcdTls>) -> io::Result<Self> {
        let files = files.cloned().unwrap_or_default();
        let stamps = stamps(&files);
        let config = config(&files)?;
        Ok(Self { files, latest: Mutex::new(Latest { config, read: stamps, reported: Vec::new() }) })
    }

    /// The configuration of the next connection. Files that cannot be used are reported once for each change, and those before
    /// them are used: a certificate may have been replaced, and its key not yet.
    pub fn latest(&self) -> Arc<ClientConfig> {
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        let stamps = stamps(&self.files);
        if stamps != latest.read {
            match config(&self.files) {
                Ok(config) => (latest.config, latest.read) = (config, stamps),
                Err(error) if stamps != latest.reported => {
                    tracing::warn!("{error}; the certificates that were read before are used");
                    latest.reported = stamps;
                }
                Err(_) => {}
            }
        }
        Arc::clone(&latest.config)
    }
}

fn stamps(files: &EtcdTls) -> Vec<Option<FileStamp>> {
    let stamp = |path: &PathBuf| {
        let file = std::fs::metadata(path).ok()?;
        Some((file.dev(), file.ino(), file.size(), file.ctime(), file.ctime_nsec()))
    };
    [&files.ca, &files.cert, &files.key].into_iter().flatten().map(stamp).collect()
}

fn config(files: &EtcdTls) -> io::Result<Arc<ClientConfig>> {
    let EtcdTls { ca, cert, key } = files;
    let mut roots = RootCertStore::empty();
    if let Some(ca) = ca {
        for one in certificates(ca)? {
            roots.add(one).map_err(|error| unfit(ca, &error.to_string()))?;
        }
    } else if let Some(file) = openssl_probe::probe().cert_file {
        // Some certificates of a machine may be of an obsolete kind.
        roots.add_parsable_certificates(certificates(&file)?);
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(io::Error::other)?.with_root_certificates(roots);
    let config = match (cert, key) {
        (None, None) => builder.with_no_client_auth(),
        (Some(cert), Some(key)) => {
            let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| unfit(key, &error.to_string()))?;
            let chain = certificates(cert)?;
            builder.with_client_auth_cert(chain, secret).map_err(|error| unfit(cert, &error.to_string()))?
        }
        (cert, _) => {
            let (given, missing) = if cert.is_some() { ("certificate", "key") } else { ("key", "certificate") };
            let why = format!("etcd: a client's {given} is given, but not its {missing}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
    };
    Ok(Arc::new(config))
}

fn certificates(file: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let found = CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let found = found.map_err(|error| unfit(file, &error.to_string()))?;
    if found.is_empty() { Err(unfit(file, "there is no certificate in it")) } else { Ok(found) }
}

fn unfit(file: &Path, why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("etcd: {}: {why}", file.display()))
}

/// What a TLS error means, if another attempt with the same files is useless.
pub fn permanent_reason(error: &Error) -> Option<String> {
    let text = match error {
        Error::InvalidCertificate(_) => {
            format!("its certificate is not accepted ({error}); name the file of the authority that signed it")
        }
        Error::AlertReceived(alert) if is_about_certificates(*alert) => format!(
            "it does not accept this node ({error}); name the files of a certificate that its authority signed, and its key"
        ),
        Error::InvalidMessage(_) => "it does not speak TLS; write http:// if it is meant to".to_owned(),
        Error::AlertReceived(AlertDescription::CloseNotify | AlertDescription::InternalError) => return None,
        Error::AlertReceived(_) | Error::PeerIncompatible(_) | Error::PeerMisbehaved(_) => {
            format!("it and this node cannot agree on TLS ({error})")
        }
        Error::NoCertificatesPresented | Error::UnsupportedNameType => format!("it shows no fit certificate ({error})"),
        _ => return None,
    };
    Some(text)
}

fn is_about_certificates(alert: AlertDescription) -> bool {
    use AlertDescription as Alert;
    matches!(
        alert,
        Alert::NoCertificate
            | Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
            | Alert::CertificateRequired
            | Alert::UnknownCA
            | Alert::AccessDenied
    )
}

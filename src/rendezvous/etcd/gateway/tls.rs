//! TLS towards etcd: certificates, and what its errors mean.

use crate::rendezvous::etcd::config::EtcdTls;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{AlertDescription, ClientConfig, Error, RootCertStore};
use std::io;
use std::path::Path;
use std::sync::Arc;

/// The configuration of connections.
pub fn config(tls: Option<&EtcdTls>) -> io::Result<Arc<ClientConfig>> {
    let no_files = EtcdTls::default();
    let EtcdTls { ca, cert, key } = tls.unwrap_or(&no_files);
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

/// What a TLS error means, if another attempt is useless.
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

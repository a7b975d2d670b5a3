//! Certificates in files.

use crate::rendezvous::etcd::server::{Etcd, Folder};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rlaunch::rendezvous::etcd::EtcdTls;
use std::fs;
use std::path::PathBuf;

/// An authority, a server's certificate and a client's, in files.
pub struct Authority(Folder);

impl Authority {
    pub fn new() -> Self {
        let folder = Folder::new();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        fs::write(folder.0.join("ca.pem"), issuer.pem()).unwrap();
        for name in ["server", "client"] {
            let key = KeyPair::generate().unwrap();
            let params = CertificateParams::new(["127.0.0.1".to_owned(), "localhost".to_owned()]).unwrap();
            let cert = params.signed_by(&key, &issuer).unwrap();
            fs::write(folder.0.join(format!("{name}.pem")), cert.pem()).unwrap();
            fs::write(folder.0.join(format!("{name}.key")), key.serialize_pem()).unwrap();
        }
        Self(folder)
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.0.0.join(name)
    }

    pub fn tls(&self, with_client: bool) -> EtcdTls {
        let client = |name: &str| with_client.then(|| self.file(name));
        EtcdTls { ca: Some(self.file("ca.pem")), cert: client("client.pem"), key: client("client.key") }
    }

    /// An etcd that shows the server's certificate and wants one of a client's from this authority.
    pub fn etcd(&self) -> Etcd {
        let file = |name: &str| self.file(name).to_string_lossy().into_owned();
        let (ca, cert, key) = (file("ca.pem"), file("server.pem"), file("server.key"));
        let options = ["--cert-file", &cert, "--key-file", &key, "--client-cert-auth", "--trusted-ca-file", &ca];
        Etcd::start_with("https", &options)
    }

    /// Replaces these files by those of another authority, each at once.
    pub fn replace(&self, other: &Self, names: &[&str]) {
        for name in names {
            let new = self.file(&format!("{name}.new"));
            fs::copy(other.file(name), &new).unwrap();
            fs::rename(new, self.file(name)).unwrap();
        }
    }
}

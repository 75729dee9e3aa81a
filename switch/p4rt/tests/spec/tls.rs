//! The server over TLS, with and without certificates of clients.

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rivulet_p4rt::proto::p4::v1 as p4;
use rivulet_p4rt::{ServerConfig, Tls};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Identity};

use crate::harness::*;

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority() -> Authority {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// A certificate and its key, in PEM.
fn issue(authority: &Authority, name: &str) -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    (params.signed_by(&key, authority).unwrap().pem(), key.serialize_pem())
}

/// Whether a client gets an answer.
async fn answered(bench: &Bench, tls: Option<ClientTlsConfig>) -> bool {
    let scheme = if tls.is_some() { "https" } else { "http" };
    let mut endpoint = Channel::from_shared(format!("{scheme}://{}", bench.address)).unwrap();
    if let Some(tls) = tls {
        endpoint = endpoint.tls_config(tls.domain_name("switch.test")).unwrap();
    }
    let Ok(channel) = endpoint.connect().await else { return false };
    P4RuntimeClient::new(channel).capabilities(p4::CapabilitiesRequest { device_id: DEVICE }).await.is_ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_are_served_over_tls() {
    let ours = authority();
    let (certificate, key) = issue(&ours, "switch.test");
    let tls = |client_authority: Option<String>, client_required| Tls {
        certificate: certificate.clone().into(),
        key: key.clone().into(),
        client_authority: client_authority.map(Into::into),
        client_required,
    };
    let trusting =
        |authority: &Authority| ClientTlsConfig::new().ca_certificate(Certificate::from_pem(authority.pem()));
    let bench = Bench::with(ServerConfig { tls: Some(tls(None, false)), ..ServerConfig::default() }).await;
    assert!(answered(&bench, Some(trusting(&ours))).await);
    assert!(!answered(&bench, Some(trusting(&authority()))).await, "a server with an unknown authority");
    assert!(!answered(&bench, None).await, "in the clear");
    bench.stop().await;

    let config = ServerConfig { tls: Some(tls(Some(ours.pem()), true)), ..ServerConfig::default() };
    let bench = Bench::with(config).await;
    let with = |(certificate, key): (String, String)| {
        Some(trusting(&ours).identity(Identity::from_pem(certificate, key)))
    };
    assert!(answered(&bench, with(issue(&ours, "controller"))).await);
    assert!(!answered(&bench, with(issue(&authority(), "controller"))).await, "another authority's");
    assert!(!answered(&bench, Some(trusting(&ours))).await, "no certificate");
    bench.stop().await;
}

//! The objects of Gateway API that say what `--route` and the listeners for requests say.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use dataplane::table::{AuthorizationFailureMode, Protocol};
use serde_json::{Map, Value, json};

use super::route_filters::RouteObjects;
use crate::config::{AuthenticationRule, ForwardAuthRule, RouteRule, RouteTarget, RunConfig};

const GATEWAY_API: &str = "gateway.networking.k8s.io/v1";
const POLICIES: &str = "gateway.sluicegate.dev/v1alpha1";
const NAMESPACE: &str = "default";
/// The Gateway of all routes.
const GATEWAY: &str = "routes";
/// Names of Services are labels of DNS.
const LABEL_BYTES_MAX: usize = 63;

/// Reads a file that a setting names.
pub(super) type ReadFile<'a> = &'a dyn Fn(&Path) -> Result<String, String>;

/// The objects of a configuration, in the order in which they are applied: a policy comes before the route that it protects.
#[derive(Debug, Default)]
pub(super) struct GatewayObjects {
    pub(super) list: Vec<Value>,
    /// What they do not say.
    pub(super) notes: Vec<String>,
}

impl GatewayObjects {
    /// # Errors
    ///
    /// A file that a setting names cannot be read.
    pub(super) fn of(config: &RunConfig, read: ReadFile<'_>) -> Result<Self, String> {
        let mut objects = Self::default();
        if config.routes.is_empty() {
            return Ok(objects);
        }
        objects.add_gateway(config, read)?;
        let mut names = BTreeSet::new();
        for rule in &config.routes {
            let name = service_name(&rule.host, &mut names);
            objects.add_route(rule, &name, read).map_err(|why| format!("route: {}: {why}", rule.host))?;
        }
        Ok(objects)
    }

    fn add_gateway(&mut self, config: &RunConfig, read: ReadFile<'_>) -> Result<(), String> {
        let mut listeners = vec![json!({ "name": "http", "protocol": "HTTP", "port": config.http.port() })];
        if config.http.port() == 0 {
            self.notes.push("http: port 0 is another one at each start; name the port".to_owned());
        }
        if let Some(https) = config.https {
            for (at, rule) in config.certificates.iter().enumerate() {
                let name = format!("certificate-{at}");
                let [chain, key] = [read(&rule.certificate)?, read(&rule.key)?].map(|pem| STANDARD.encode(pem));
                let mut secret = object("v1", "Secret", &name, json!({}));
                secret["type"] = json!("kubernetes.io/tls");
                secret["data"] = json!({ "tls.crt": chain, "tls.key": key });
                self.list.push(secret);
                let tls = json!({ "certificateRefs": [{ "name": name }] });
                let mut listener =
                    json!({ "name": format!("https-{at}"), "protocol": "HTTPS", "port": https.port(), "tls": tls });
                if rule.host != "*" {
                    listener["hostname"] = json!(rule.host);
                }
                listeners.push(listener);
            }
            if config.certificates.is_empty() {
                let why = "https: a listener of a Gateway needs a certificate in a Secret, and --tls-cert names none";
                self.notes.push(why.to_owned());
            }
        }
        let spec = json!({ "gatewayClassName": "sluicegate", "listeners": listeners });
        self.list.push(object(GATEWAY_API, "Gateway", GATEWAY, spec));
        Ok(())
    }

    fn add_route(&mut self, rule: &RouteRule, name: &str, read: ReadFile<'_>) -> Result<(), String> {
        let note = |why: &str| format!("route: {}: {why}", rule.host);
        let Some(addresses) = addresses(&rule.targets) else {
            let why = "it is left out: a Service has addresses, and not the names or sockets of this route";
            self.notes.push(note(why));
            return Ok(());
        };
        let RouteObjects { filters, mut security, traffic, timeouts, missing } = RouteObjects::of(&rule.options);
        self.notes.extend(missing.iter().map(|option| note(&format!("no object has the option {option}"))));
        if rule.host.starts_with("*.") {
            self.notes.push(note("in a HTTPRoute it also matches names with more labels"));
        }
        if let Some(authentication) = &rule.authentication {
            self.add_authentication(authentication, name, &mut security, read)?;
        }
        if let Some(forward_auth) = &rule.forward_auth {
            match ext_auth(forward_auth, &rule.options) {
                Some(ext_auth) => drop(security.insert("extAuth".to_owned(), ext_auth)),
                None => {
                    self.notes.push(note("no object has the option forward-auth-ca: trust the authority on the host"))
                }
            }
        }
        self.add_service(rule, name, &addresses);
        if let Some(tls) = &rule.tls {
            let mut map = object("v1", "ConfigMap", name, Value::Null);
            map["data"] = json!({ "ca.crt": read(&tls.authorities)? });
            self.list.push(map);
            let references = json!([{ "group": "", "kind": "ConfigMap", "name": name }]);
            let validation = json!({ "hostname": tls.name, "caCertificateRefs": references });
            let target = json!([{ "group": "", "kind": "Service", "name": name }]);
            let spec = json!({ "targetRefs": target, "validation": validation });
            self.list.push(object(GATEWAY_API, "BackendTLSPolicy", name, spec));
            if tls.name.parse::<IpAddr>().is_ok() {
                self.notes.push(note("a BackendTLSPolicy needs a host name, and the certificate has an address"));
            }
        }
        for (kind, fields) in [("SecurityPolicy", security), ("TrafficPolicy", traffic)] {
            if !fields.is_empty() {
                let target = json!([{ "group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": name }]);
                let mut spec = Map::from_iter([("targetRefs".to_owned(), target)]);
                spec.extend(fields);
                self.list.push(object(POLICIES, kind, name, spec.into()));
            }
        }
        let mut http_rule = json!({ "backendRefs": [{ "name": name, "port": 80 }] });
        if !filters.is_empty() {
            http_rule["filters"] = filters.into();
        }
        if let Some(timeouts) = timeouts {
            http_rule["timeouts"] = timeouts;
        }
        let mut spec = json!({ "parentRefs": [{ "name": GATEWAY }], "rules": [http_rule] });
        if rule.host != "*" {
            spec["hostnames"] = json!([rule.host]);
        }
        self.list.push(object(GATEWAY_API, "HTTPRoute", name, spec));
        Ok(())
    }

    /// A Service without a selector, with its addresses. A slice has one family and one port.
    fn add_service(&mut self, rule: &RouteRule, name: &str, addresses: &[SocketAddr]) {
        let mut port = json!({ "name": "http", "port": 80 });
        if rule.protocol == Protocol::H2c {
            port["appProtocol"] = json!("kubernetes.io/h2c");
        }
        self.list.push(object("v1", "Service", name, json!({ "ports": [port] })));
        let groups: BTreeSet<_> = addresses.iter().map(|address| (address.is_ipv6(), address.port())).collect();
        for (is_ipv6, port) in groups {
            let of_group = addresses.iter().filter(|address| (address.is_ipv6(), address.port()) == (is_ipv6, port));
            let endpoints: Vec<_> = of_group
                .map(|address| json!({ "addresses": [address.ip().to_string()], "conditions": { "ready": true } }))
                .collect();
            let family = if is_ipv6 { "IPv6" } else { "IPv4" };
            let slice = format!("{name}-{}-{port}", family.to_ascii_lowercase());
            let mut made = object("discovery.k8s.io/v1", "EndpointSlice", &slice, Value::Null);
            made["metadata"]["labels"] = json!({ "kubernetes.io/service-name": name });
            made["addressType"] = json!(family);
            made["endpoints"] = endpoints.into();
            made["ports"] = json!([{ "name": "http", "port": port }]);
            self.list.push(made);
        }
    }

    fn add_authentication(
        &mut self,
        AuthenticationRule { basic, jwt }: &AuthenticationRule,
        name: &str,
        security: &mut Map<String, Value>,
        read: ReadFile<'_>,
    ) -> Result<(), String> {
        if let Some(basic) = basic {
            let mut secret = object("v1", "Secret", name, Value::Null);
            secret["data"] = json!({ "htpasswd": STANDARD.encode(read(&basic.file)?) });
            self.list.push(secret);
            let mut fields = json!({ "secretRef": { "name": name }, "realm": basic.realm });
            if let Some(header) = &basic.user_header {
                fields["userHeader"] = json!(header);
            }
            security.insert("basicAuth".to_owned(), fields);
        }
        if let Some(jwt) = jwt {
            let mut fields = json!({ "jwks": { "inline": read(&jwt.keys)? } });
            if let Some(issuer) = &jwt.issuer {
                fields["issuer"] = json!(issuer);
            }
            if !jwt.audiences.is_empty() {
                fields["audiences"] = json!(jwt.audiences);
            }
            let claims = jwt.claim_headers.iter().map(|(claim, header)| json!({ "claim": claim, "header": header }));
            let claims: Vec<_> = claims.collect();
            if !claims.is_empty() {
                fields["claimHeaders"] = claims.into();
            }
            security.insert("jwt".to_owned(), fields);
        }
        Ok(())
    }
}

/// `None`: only a file of this host says which certificates are accepted.
fn ext_auth(rule: &ForwardAuthRule, options: &[(String, String)]) -> Option<Value> {
    if rule.tls.is_some() {
        return None;
    }
    let values = |wanted: &str| -> Vec<&str> {
        let lists = options.iter().filter(|(name, _)| name == wanted);
        lists.flat_map(|(_, value)| value.split(',').map(str::trim)).collect()
    };
    let url = options.iter().rev().find(|(name, _)| name == "forward-auth").map(|(_, url)| url)?;
    let mut http = json!({ "url": url });
    let to_backend = values("forward-auth-response-headers");
    if !to_backend.is_empty() {
        http["headersToBackend"] = json!(to_backend);
    }
    let mut fields = json!({ "http": http, "timeout": format!("{}ms", rule.service.timeout().as_millis()) });
    let to_service = values("forward-auth-headers");
    if !to_service.is_empty() {
        fields["headersToExtAuth"] = json!(to_service);
    }
    fields["failureMode"] = json!(match rule.service.failure_mode {
        AuthorizationFailureMode::Unavailable => "Unavailable",
        AuthorizationFailureMode::Forbidden => "Forbidden",
        AuthorizationFailureMode::Allow => "Allow",
    });
    Some(fields)
}

fn object(api_version: &str, kind: &str, name: &str, spec: Value) -> Value {
    let metadata = json!({ "name": name, "namespace": NAMESPACE });
    let mut made = json!({ "apiVersion": api_version, "kind": kind, "metadata": metadata });
    if spec.as_object().is_some_and(|spec| !spec.is_empty()) {
        made["spec"] = spec;
    }
    made
}

/// `None`: one of the targets is a name or a socket.
fn addresses(targets: &[RouteTarget]) -> Option<Vec<SocketAddr>> {
    let address = |target: &RouteTarget| match target {
        RouteTarget::Address(address) => Some(*address),
        RouteTarget::Name(..) | RouteTarget::Unix(_) => None,
    };
    targets.iter().map(address).collect()
}

/// A name for the objects of a host: that of a Service has no dots.
fn service_name(host: &str, names: &mut BTreeSet<String>) -> String {
    let text = match host.strip_prefix("*.") {
        _ if host == "*" => "any-host".to_owned(),
        Some(parent) => format!("wildcard-{parent}"),
        None => host.to_owned(),
    };
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let mut name: String = text.chars().map(plain).take(LABEL_BYTES_MAX - 8).collect();
    if !name.starts_with(|c: char| c.is_ascii_lowercase()) {
        name.insert_str(0, "h-");
    }
    let name = name.trim_end_matches('-').to_owned();
    let numbered = (2..).map(|number| format!("{name}-{number}"));
    let free = std::iter::once(name.clone()).chain(numbered).find(|name| !names.contains(name));
    let name = free.unwrap_or(name);
    names.insert(name.clone());
    name
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Settings;

    fn made(routes: &[&str]) -> GatewayObjects {
        let route: Result<Vec<_>, _> = routes.iter().map(|text| text.parse()).collect();
        let settings = Settings { route: route.unwrap(), ..Settings::default() };
        let config = RunConfig::decide(settings).unwrap();
        GatewayObjects::of(&config, &|file| Ok(format!("text of {}", file.display()))).unwrap()
    }

    fn find<'a>(objects: &'a GatewayObjects, kind: &str) -> Option<&'a Value> {
        objects.list.iter().find(|object| object["kind"] == kind)
    }

    #[test]
    fn names_of_hosts_are_labels_and_unique() {
        let mut names = BTreeSet::new();
        let long = format!("{}.example.com", "a".repeat(60));
        for (host, name) in [
            ("*", "any-host"),
            ("*.example.com", "wildcard-example-com"),
            ("app.example.com", "app-example-com"),
            ("app-example.com", "app-example-com-2"),
            ("1.example.com", "h-1-example-com"),
            (&long, &"a".repeat(55)),
        ] {
            assert_eq!(service_name(host, &mut names), name, "{host}");
        }
        assert!(names.iter().all(|name| name.len() <= LABEL_BYTES_MAX));
    }

    #[test]
    fn addresses_are_grouped_by_family_and_port() {
        let made = made(&["a.test=h2c://127.0.0.1:1,127.0.0.2:1,127.0.0.1:2,[::1]:1"]);
        let slices: Vec<_> = made.list.iter().filter(|object| object["kind"] == "EndpointSlice").collect();
        let summary: Vec<_> = slices
            .iter()
            .map(|slice| {
                let count = slice["endpoints"].as_array().unwrap().len();
                (slice["addressType"].as_str().unwrap(), slice["ports"][0]["port"].as_u64().unwrap(), count)
            })
            .collect();
        assert_eq!(summary, [("IPv4", 1, 2), ("IPv4", 2, 1), ("IPv6", 1, 1)]);
        assert_eq!(find(&made, "Service").unwrap()["spec"]["ports"][0]["appProtocol"], "kubernetes.io/h2c");
        assert_eq!(made.notes, Vec::<String>::new());
    }

    /// Objects that are applied in their order never serve a route without its policy.
    #[test]
    fn policy_comes_before_its_route() {
        let made = made(&["a.test=127.0.0.1:1?deny=10.0.0.0/8&basic-auth=/users&max-body=5"]);
        let kinds: Vec<_> = made.list.iter().map(|object| object["kind"].as_str().unwrap()).collect();
        assert_eq!(
            kinds,
            ["Gateway", "Secret", "Service", "EndpointSlice", "SecurityPolicy", "TrafficPolicy", "HTTPRoute"]
        );
        let policy = &find(&made, "SecurityPolicy").unwrap()["spec"];
        assert_eq!(policy["basicAuth"], json!({ "secretRef": { "name": "a-test" }, "realm": "restricted" }));
        let users = STANDARD.encode("text of /users");
        assert_eq!(find(&made, "Secret").unwrap()["data"]["htpasswd"], json!(users));
    }

    #[test]
    fn what_no_object_says_is_noted() {
        for (route, why) in [
            ("a.test=localhost:1", "left out"),
            ("a.test=unix:/run/a.sock", "left out"),
            ("*.test=127.0.0.1:1", "more labels"),
            ("a.test=127.0.0.1:1?connect-timeout=1s", "connect-timeout=1s"),
            ("a.test=127.0.0.1:1?proxy-protocol=v2", "proxy-protocol=v2"),
            ("a.test=127.0.0.1:1?rewrite-host=b.test:80", "rewrite-host"),
            ("a.test=127.0.0.1:1?forward-auth=https://b/&forward-auth-ca=/ca", "forward-auth-ca"),
            ("a.test=https://127.0.0.1:1?ca=/ca&name=127.0.0.1", "host name"),
        ] {
            let notes = made(&[route]).notes;
            assert!(notes.len() == 1 && notes[0].contains(why), "{route}: {notes:?}");
        }
        assert!(made(&[]).list.is_empty());
    }
}

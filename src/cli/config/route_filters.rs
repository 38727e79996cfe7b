//! The options of a `--route` as filters of an HTTPRoute and as fields of policies.

use serde_json::{Map, Value, json};

/// Options that other parts of a route's objects say.
const ELSEWHERE: [&str; 2] = ["ca", "name"];

/// What the options of a route say.
#[derive(Debug, Default)]
pub(super) struct RouteObjects {
    /// Of the rule.
    pub(super) filters: Vec<Value>,
    /// Of a SecurityPolicy.
    pub(super) security: Map<String, Value>,
    /// Of a TrafficPolicy.
    pub(super) traffic: Map<String, Value>,
    /// Of the rule.
    pub(super) timeouts: Option<Value>,
    /// Options that no object has.
    pub(super) missing: Vec<String>,
}

/// Changes to the headers of one direction, by name in the order of the first change.
#[derive(Debug, Default)]
struct HeaderModifier(Vec<HeaderFields>);

#[derive(Debug)]
struct HeaderFields {
    name: String,
    /// Fields that were there are dropped.
    replaces: bool,
    values: Vec<String>,
}

impl HeaderModifier {
    fn change(&mut self, name: &str, replaces: bool, value: Option<&str>) {
        let known = self.0.iter().position(|fields| fields.name.eq_ignore_ascii_case(name));
        let at = known.unwrap_or_else(|| {
            self.0.push(HeaderFields { name: name.to_owned(), replaces: false, values: Vec::new() });
            self.0.len() - 1
        });
        let fields = &mut self.0[at];
        if replaces {
            (fields.replaces, fields.values) = (true, Vec::new());
        }
        fields.values.extend(value.map(str::to_owned));
    }

    /// The filter sets first, then adds, and removes in the end.
    fn filter(&self, kind: &str, field: &str) -> Option<Value> {
        let (mut set, mut add, mut remove) = (Vec::new(), Vec::new(), Vec::new());
        for HeaderFields { name, replaces, values } in &self.0 {
            let mut values = values.iter().map(|value| json!({ "name": name, "value": value }));
            if *replaces {
                match values.next() {
                    Some(first) => set.push(first),
                    None => remove.push(json!(name)),
                }
            }
            add.extend(values);
        }
        let lists = [("set", set), ("add", add), ("remove", remove)];
        let lists = lists.into_iter().filter(|(_, list)| !list.is_empty());
        let fields: Map<_, _> = lists.map(|(name, list)| (name.to_owned(), list.into())).collect();
        (!fields.is_empty()).then(|| json!({ "type": kind, field: fields }))
    }
}

impl RouteObjects {
    pub(super) fn of(options: &[(String, String)]) -> Self {
        let mut made = Self::default();
        let (mut request, mut response) = (HeaderModifier::default(), HeaderModifier::default());
        let (mut rewrite, mut cors) = (Map::new(), Map::new());
        for (name, value) in options {
            let items = || -> Vec<Value> { value.split(',').map(|item| json!(item.trim())).collect() };
            let (header, text) =
                value.split_once(':').map_or((value.as_str(), ""), |(header, text)| (header, text.trim()));
            match name.as_str() {
                "rewrite-prefix" => {
                    let path = json!({ "type": "ReplacePrefixMatch", "replacePrefixMatch": value });
                    rewrite.insert("path".to_owned(), path);
                }
                // The field is a name without a port.
                "rewrite-host" if !value.contains(':') => drop(rewrite.insert("hostname".to_owned(), json!(value))),
                "set-header" => request.change(header, true, Some(text)),
                "add-header" => request.change(header, false, Some(text)),
                "remove-header" => request.change(value, true, None),
                "set-response-header" => response.change(header, true, Some(text)),
                "add-response-header" => response.change(header, false, Some(text)),
                "remove-response-header" => response.change(value, true, None),
                "allow" | "deny" => extend(&mut made.security, name, items()),
                "rate-limit" => extend(&mut made.security, "rateLimits", vec![rate_limit(value)]),
                "max-body" => {
                    let bytes = value.parse::<u64>().unwrap_or_default();
                    made.traffic.insert("requestBody".to_owned(), json!({ "maxBytes": bytes }));
                }
                "compress" => drop(made.traffic.insert("compression".to_owned(), json!({ "codings": items() }))),
                "cors-origin" => extend(&mut cors, "allowOrigins", items()),
                "cors-methods" => extend(&mut cors, "allowMethods", items()),
                "cors-headers" => extend(&mut cors, "allowHeaders", items()),
                "cors-expose-headers" => extend(&mut cors, "exposeHeaders", items()),
                "cors-credentials" => drop(cors.insert("allowCredentials".to_owned(), json!(true))),
                "cors-max-age" => {
                    cors.insert("maxAge".to_owned(), json!(value.parse::<u32>().unwrap_or_default()));
                }
                "request-timeout" => made.timeouts = Some(json!({ "request": duration(value) })),
                name if name.starts_with("forward-auth")
                    || name.starts_with("jw")
                    || name.starts_with("basic-auth") => {}
                name if ELSEWHERE.contains(&name) => {}
                name => made.missing.push(format!("{name}={value}")),
            }
        }
        made.filters.extend(request.filter("RequestHeaderModifier", "requestHeaderModifier"));
        made.filters.extend(response.filter("ResponseHeaderModifier", "responseHeaderModifier"));
        if !rewrite.is_empty() {
            made.filters.push(json!({ "type": "URLRewrite", "urlRewrite": rewrite }));
        }
        if !cors.is_empty() {
            made.security.insert("cors".to_owned(), cors.into());
        }
        made
    }
}

fn extend(fields: &mut Map<String, Value>, name: &str, items: Vec<Value>) {
    let list = fields.entry(name).or_insert_with(|| json!([]));
    list.as_array_mut().into_iter().for_each(|list| list.extend(items.clone()));
}

/// `100/s`, `10/5m,burst=20,by=client`: checked before.
fn rate_limit(value: &str) -> Value {
    let mut parts = value.split(',').map(str::trim);
    let (requests, period) = parts.next().and_then(|rate| rate.split_once('/')).unwrap_or_default();
    let period =
        if period.starts_with(|c: char| c.is_ascii_digit()) { period.to_owned() } else { format!("1{period}") };
    let number = |text: &str| json!(text.parse::<u32>().unwrap_or_default());
    let mut limit = json!({ "requests": number(requests), "period": duration(&period) });
    for part in parts {
        match part.split_once('=') {
            Some(("burst", count)) => limit["burst"] = number(count),
            Some(("by", "client")) => limit["by"] = json!("Client"),
            Some(("by", key)) => {
                limit["by"] = json!("Header");
                limit["header"] = json!(key.trim_start_matches("header:"));
            }
            _ => {}
        }
    }
    limit
}

/// Of flags, `0` is a duration.
fn duration(value: &str) -> String {
    if value == "0" { "0s".to_owned() } else { value.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(options: &[(&str, &str)]) -> RouteObjects {
        let options: Vec<_> = options.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        RouteObjects::of(&options)
    }

    /// A filter removes after it has added, whatever the order of the options is.
    #[test]
    fn later_change_of_a_header_counts() {
        let made = made(&[
            ("add-header", "A:1"),
            ("set-header", "a:2"),
            ("add-header", "A:3"),
            ("remove-header", "B"),
            ("add-header", "B: 4"),
            ("set-header", "C:5"),
            ("remove-header", "c"),
            ("add-header", "D:x:y"),
        ]);
        let set = json!([{ "name": "A", "value": "2" }, { "name": "B", "value": "4" }]);
        let add = json!([{ "name": "A", "value": "3" }, { "name": "D", "value": "x:y" }]);
        let changes = json!({ "set": set, "add": add, "remove": ["C"] });
        assert_eq!(made.filters, [json!({ "type": "RequestHeaderModifier", "requestHeaderModifier": changes })]);
    }

    #[test]
    fn options_become_fields_of_policies() {
        let made = made(&[
            ("allow", "10.0.0.0/8, ::1"),
            ("allow", "127.0.0.1"),
            ("rate-limit", "100/s"),
            ("rate-limit", "10/5m,burst=20,by=header:X-Key"),
            ("max-body", "7"),
            ("compress", "br,gzip"),
            ("cors-origin", "https://a.test"),
            ("cors-credentials", "true"),
            ("request-timeout", "5s"),
            ("rewrite-prefix", "/v1"),
            ("rewrite-host", "b.test"),
            ("jwks", "/keys"),
            ("ca", "/ca"),
            ("health-check", "/"),
        ]);
        let security = json!({ "allow": ["10.0.0.0/8", "::1", "127.0.0.1"], "rateLimits": [
            { "requests": 100, "period": "1s" },
            { "requests": 10, "period": "5m", "burst": 20, "by": "Header", "header": "X-Key" } ],
            "cors": { "allowOrigins": ["https://a.test"], "allowCredentials": true } });
        assert_eq!(Value::from(made.security), security);
        let traffic = json!({ "requestBody": { "maxBytes": 7 }, "compression": { "codings": ["br", "gzip"] } });
        assert_eq!(Value::from(made.traffic), traffic);
        assert_eq!(made.timeouts, Some(json!({ "request": "5s" })));
        let path = json!({ "type": "ReplacePrefixMatch", "replacePrefixMatch": "/v1" });
        let rewrite = json!({ "type": "URLRewrite", "urlRewrite": { "path": path, "hostname": "b.test" } });
        assert_eq!((made.filters, made.missing), (vec![rewrite], vec!["health-check=/".to_owned()]));
    }
}

package config

import (
	"cmp"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// Webhooks lists the targets of response policies, which may call only these and those of `lofamoctl notify add`. See
// docs/webhooks.md.
type Webhooks struct {
	// Targets by the names that policies use. At most 64.
	Targets []WebhookTarget `json:"targets"`
}

// WebhookTarget is one receiver.
type WebhookTarget struct {
	// Name that policies give as the parameter target. 1 to 63 of a-z, 0-9, '-' and '.'. Required.
	Name string `json:"name"`
	// URL that everything is posted to: https, or http with Plaintext. Required.
	URL string `json:"url"`
	// Kinds are the allowed uses: notify, remediate. Default notify alone.
	Kinds []string `json:"kinds,omitempty"`
	// SecretFiles hold the secrets that sign requests, "whsec_" and 24 to 64 bytes in base64. Use two during a change
	// of the secret: requests then bear both signatures. The files are read again for every request. 1 or 2; with answers
	// status also none, and then requests have no signature.
	SecretFiles []string `json:"secretFiles,omitempty"`
	// Answers is contract, if the receiver answers as in docs/webhooks.md, or status for other receivers: then a status
	// of 2xx is success, and only notify is possible. Default contract.
	Answers string `json:"answers,omitempty"`
	// Addresses are the only prefixes ("10.1.0.0/16") that the host's name may resolve to. Default none: any public
	// address. Private, link-local and loopback addresses are called only if listed here.
	Addresses []string `json:"addresses,omitempty"`
	// Plaintext allows an http URL: anyone on the path can read the requests and forge answers. Default false.
	Plaintext bool `json:"plaintext,omitempty"`
	// TLS of the connection.
	TLS ClientTLS `json:"tls,omitzero"`
	// RequestTimeout is the maximum time of one request; a step's time-out limits the whole attempt. 100ms to 5m. 0
	// stands for 10s, the default.
	RequestTimeout Duration `json:"requestTimeout,omitzero"`
}

// ClientTLS is the TLS configuration for connections to external servers.
type ClientTLS struct {
	// CA is a PEM file with the authorities for the server's certificate. Default the machine's.
	CA string `json:"ca,omitempty"`
	// Cert and Key are PEM files with a certificate of ours and its key. Both or none. Default none.
	Cert string `json:"cert,omitempty"`
	// Key belongs to Cert, and is readable by its owner only.
	Key string `json:"key,omitempty"`
	// ServerName is the name that the server's certificate must have. Default that of the URL.
	ServerName string `json:"serverName,omitempty"`
}

// Values of WebhookTarget.Kinds and Answers.
const (
	WebhookNotify    = "notify"
	WebhookRemediate = "remediate"
	AnswersContract  = "contract"
	AnswersStatus    = "status"
)

// defaultRequestTimeout is the maximum time of one request to an external server.
const defaultRequestTimeout = 10 * time.Second

// Alertmanagers is where alerts are sent.
type Alertmanagers struct {
	// URLs of all members of one Alertmanager cluster, as "http://host:9093", with a path if there is a prefix. Alerts
	// go to each of these members. 1 to 16. Required.
	URLs []string `json:"urls"`
	// TLS of the connections.
	TLS ClientTLS `json:"tls,omitzero"`
	// BearerTokenFile holds a token for the Authorization header. It is read again for every request. Default none.
	BearerTokenFile string `json:"bearerTokenFile,omitempty"`
	// Labels are added to all alerts. They must differ from the alerts' own labels. At most 16. Default none.
	Labels map[string]string `json:"labels,omitempty"`
	// Link is an URL of the alert's source, for people. Default none.
	Link string `json:"link,omitempty"`
	// Resend is the interval at which active alerts are sent again. 10s to 10m. 0 stands for 1m, the default.
	Resend Duration `json:"resend,omitzero"`
	// Hold is the lifetime of an alert that is not sent again, and so the time by which it outlives its supervisors. At
	// least three times Resend, at most 24h. 0 stands for four times Resend, the default.
	Hold Duration `json:"hold,omitzero"`
	// RequestTimeout is the maximum time of one request. 100ms to 1m. 0 stands for 5s, the default.
	RequestTimeout Duration `json:"requestTimeout,omitzero"`
}

// NoticeLabel is the alerts' own label that Validate accepts in Labels, because earlier versions did. The configured value is ignored.
const NoticeLabel = "notice"

// AlertLabels returns the alerts' own labels.
func AlertLabels() []string {
	return []string{"alertname", "cluster", "component", "group", "node", NoticeLabel, "policy", "severity"}
}

// wantLabel is the text for a label that is refused.
func wantLabel() string {
	return "a name of 1 to 63 letters, digits and '_' that is none of " + strings.Join(AlertLabels(), ", ")
}

const (
	defaultResend       = time.Minute
	defaultAlertTimeout = 5 * time.Second
)

// Limits on targets and labels.
const (
	maxWebhookTargets = 64
	maxAlertmanagers  = 16
	maxAlertLabels    = 16
)

var labelName = lazily(`^[a-zA-Z_][a-zA-Z0-9_]{0,62}$`)

// Filled returns the configuration with its defaults filled in.
func (w Webhooks) Filled() Webhooks {
	w.Targets = slices.Clone(w.Targets)
	for i := range w.Targets {
		t := &w.Targets[i]
		if len(t.Kinds) == 0 {
			t.Kinds = []string{WebhookNotify}
		}
		t.Answers = cmp.Or(t.Answers, AnswersContract)
		if t.RequestTimeout == 0 {
			t.RequestTimeout = Duration(defaultRequestTimeout)
		}
	}
	return w
}

// Validate names every bad field at once.
func (w Webhooks) Validate() error {
	p := &problems{}
	if n := len(w.Targets); n < 1 || n > maxWebhookTargets {
		p.bad("targets", n, "1 to %d of them", maxWebhookTargets)
	}
	seen := map[string]bool{}
	for i, t := range w.Filled().Targets {
		at := fmt.Sprintf("targets[%d].", i)
		if !fault.IsNameWith(t.Name, false, "-.") {
			p.bad(at+"name", t.Name, "1 to 63 of a-z, 0-9, '-' and '.', the first and last a letter or digit")
		} else if seen[t.Name] {
			p.bad(at+"name", t.Name, "each name once")
		}
		seen[t.Name] = true
		t.validate(p, at)
	}
	return p.err()
}

func (t WebhookTarget) validate(p *problems, at string) {
	u := p.called(at+"url", t.URL, t.Plaintext)
	for i, k := range t.Kinds {
		p.oneOf(fmt.Sprintf("%skinds[%d]", at, i), k, WebhookNotify, WebhookRemediate)
		if slices.Contains(t.Kinds[:i], k) {
			p.bad(fmt.Sprintf("%skinds[%d]", at, i), k, "each kind once")
		}
	}
	if n := len(t.SecretFiles); n > 2 || n == 0 && t.Answers == AnswersContract {
		p.bad(at+"secretFiles", n, "1, or 2 while a secret is being replaced; none only with answers: %s", AnswersStatus)
	}
	for i, f := range t.SecretFiles {
		p.path(fmt.Sprintf("%ssecretFiles[%d]", at, i), f)
	}
	p.oneOf(at+"answers", t.Answers, AnswersContract, AnswersStatus)
	if t.Answers == AnswersStatus && slices.Contains(t.Kinds, WebhookRemediate) {
		p.bad(at+"answers", t.Answers, "%s, for a target that remediates", AnswersContract)
	}
	var prefixes []netip.Prefix
	for i, a := range t.Addresses {
		f, err := netip.ParsePrefix(a)
		if err != nil || f != f.Masked() || f.Bits() == 0 {
			p.bad(fmt.Sprintf("%saddresses[%d]", at, i), a,
				"a prefix, such as 10.1.0.0/16 or fd00:1::/32, without bits beyond its length, which is not 0")
			continue
		}
		prefixes = append(prefixes, f)
	}
	if u != nil && len(prefixes) == len(t.Addresses) {
		if ip, err := netip.ParseAddr(u.Hostname()); err == nil {
			p.wrap(at+"url", CheckAddress(ip, prefixes))
		}
	}
	t.TLS.validate(p, at+"tls.", u)
	if d := t.RequestTimeout.D(); d < 100*time.Millisecond || d > 5*time.Minute {
		p.bad(at+"requestTimeout", d, "100ms to 5m")
	}
}

// called checks the URL of an external server.
func (p *problems) called(field, v string, plaintext bool) *url.URL {
	u, err := url.Parse(v)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.Fragment != "" || u.RawQuery != "" ||
		u.Opaque != "":
		p.bad(field, v, `"https://host:port/path", without query and fragment`)
		return nil
	case u.User != nil:
		p.bad(field, u.Redacted(), "one without user and password")
		return nil
	case u.Scheme == "http" && !plaintext:
		p.bad(field, v, "https, or plaintext: true beside it")
	}
	return u
}

func (c ClientTLS) validate(p *problems, at string, u *url.URL) {
	if (c.Cert == "") != (c.Key == "") {
		p.bad(at+"cert", c.Cert, "a certificate with its key, or neither")
	}
	if u != nil && u.Scheme == "http" && c != (ClientTLS{}) {
		p.bad(strings.TrimSuffix(at, "."), "a value", "none: the url is not https")
	}
}

// Filled returns the configuration with its defaults filled in.
func (a Alertmanagers) Filled() Alertmanagers {
	if a.Resend == 0 {
		a.Resend = Duration(defaultResend)
	}
	a.Hold = cmp.Or(a.Hold, 4*a.Resend)
	if a.RequestTimeout == 0 {
		a.RequestTimeout = Duration(defaultAlertTimeout)
	}
	return a
}

// Validate names every bad field at once.
func (a Alertmanagers) Validate() error {
	p := &problems{}
	a = a.Filled()
	if n := len(a.URLs); n < 1 || n > maxAlertmanagers {
		p.bad("urls", n, "1 to %d of them", maxAlertmanagers)
	}
	var secure *url.URL
	for i, v := range a.URLs {
		field := fmt.Sprintf("urls[%d]", i)
		if u := p.called(field, v, true); u != nil && (secure == nil || u.Scheme == "https") {
			secure = u
		}
		if slices.Contains(a.URLs[:i], v) {
			p.bad(field, v, "each once")
		}
	}
	a.TLS.validate(p, "tls.", secure)
	if len(a.Labels) > maxAlertLabels {
		p.bad("labels", len(a.Labels), "at most %d", maxAlertLabels)
	}
	for _, k := range sortedKeys(a.Labels) {
		v := a.Labels[k]
		switch {
		case !labelName().MatchString(k) || k != NoticeLabel && slices.Contains(AlertLabels(), k) || strings.HasPrefix(k, "__"):
			p.bad("labels."+k, k, "%s", wantLabel())
		case v == "" || len(v) > 256 || strings.ToValidUTF8(v, "") != v:
			p.bad("labels."+k, v, "a text of 1 to 256 bytes")
		}
	}
	if a.Link != "" {
		p.called("link", a.Link, true)
	}
	if d := a.Resend.D(); d < 10*time.Second || d > 10*time.Minute {
		p.bad("resend", d, "10s to 10m")
	}
	if d := a.Hold.D(); d < 3*a.Resend.D() || d > 24*time.Hour {
		p.bad("hold", d, "three times resend (%s) to 24h", 3*a.Resend.D())
	}
	if d := a.RequestTimeout.D(); d < 100*time.Millisecond || d > time.Minute {
		p.bad("requestTimeout", d, "100ms to 1m")
	}
	return p.err()
}

// notPublic are prefixes that Go calls global unicast, but that are private or lead to arbitrary other addresses.
var notPublic = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"),     // this network (RFC 1122)
	netip.MustParsePrefix("100.64.0.0/10"), // behind a carrier (RFC 6598)
	netip.MustParsePrefix("192.0.0.0/24"),  // protocols (RFC 6890)
	netip.MustParsePrefix("198.18.0.0/15"), // benchmarks (RFC 2544)
	netip.MustParsePrefix("240.0.0.0/4"),   // reserved (RFC 1112)
	netip.MustParsePrefix("64:ff9b::/96"),  // to any IPv4 address (RFC 6052)
	netip.MustParsePrefix("64:ff9b:1::/48"),
	netip.MustParsePrefix("2001::/23"), // protocols, Teredo among them (RFC 2928)
	netip.MustParsePrefix("2002::/16"), // 6to4: to any IPv4 address (RFC 3056)
	netip.MustParsePrefix("fec0::/10"), // site-local (RFC 3879)
}

// CheckAddress returns an error for a forbidden address: one outside all prefixes or, without prefixes, one that is not
// public.
func CheckAddress(ip netip.Addr, prefixes []netip.Prefix) error {
	ip = ip.Unmap().WithZone("")
	in := func(f netip.Prefix) bool { return f.Contains(ip) }
	switch {
	case len(prefixes) > 0 && !slices.ContainsFunc(prefixes, in):
		return fmt.Errorf("address %s: want one in %s", ip, fault.List(prefixes))
	case len(prefixes) > 0:
		return nil
	case !ip.IsGlobalUnicast() || ip.IsPrivate() || slices.ContainsFunc(notPublic, in):
		return fmt.Errorf("address %s: want a public one, or its prefix among the target's addresses", ip)
	default:
		return nil
	}
}

package config

import (
	"net/netip"
	"strings"
	"testing"
	"time"
)

func goodTarget() WebhookTarget {
	return WebhookTarget{Name: "ticket", URL: "https://hooks.example/x", SecretFiles: []string{"/etc/s"}}
}

func TestWebhookValidationNamesField(t *testing.T) {
	if err := (Webhooks{Targets: []WebhookTarget{goodTarget()}}).Validate(); err != nil {
		t.Fatal(err)
	}
	unsigned := goodTarget()
	unsigned.SecretFiles, unsigned.Answers = nil, AnswersStatus
	if err := (Webhooks{Targets: []WebhookTarget{unsigned}}).Validate(); err != nil {
		t.Errorf("a target that answers with a status alone needs no secret: %v", err)
	}
	if err := (Webhooks{}).Validate(); err == nil || !strings.Contains(err.Error(), "targets: given 0") {
		t.Errorf("%v", err)
	}
	for want, change := range map[string]func(*WebhookTarget){
		"targets[0].name: given Ticket":          func(w *WebhookTarget) { w.Name = "Ticket" },
		"targets[0].url: given nothing":          func(w *WebhookTarget) { w.URL = "" },
		"targets[0].url: given ftp":              func(w *WebhookTarget) { w.URL = "ftp://a/" },
		"targets[0].url: given https://a/?q=1":   func(w *WebhookTarget) { w.URL = "https://a/?q=1" },
		"without user":                           func(w *WebhookTarget) { w.URL = "https://u:geheim@a/" },
		"plaintext: true":                        func(w *WebhookTarget) { w.URL = "http://a/" },
		"address 169.254.169.254: want a public": func(w *WebhookTarget) { w.URL = "https://169.254.169.254/latest" },
		"address 8.8.8.8: want one in 10":        func(w *WebhookTarget) { w.URL, w.Addresses = "https://8.8.8.8/", []string{"10.0.0.0/8"} },
		"kinds[1]: given notify":                 func(w *WebhookTarget) { w.Kinds = []string{"notify", "notify"} },
		"kinds[0]: given reset":                  func(w *WebhookTarget) { w.Kinds = []string{"reset"} },
		"secretFiles: given 0":                   func(w *WebhookTarget) { w.SecretFiles = nil },
		"secretFiles: given 3":                   func(w *WebhookTarget) { w.SecretFiles = []string{"a", "b", "c"} },
		"secretFiles[0]: given nothing":          func(w *WebhookTarget) { w.SecretFiles = []string{""} },
		"answers: given maybe":                   func(w *WebhookTarget) { w.Answers = "maybe" },
		"answers: given status":                  func(w *WebhookTarget) { w.Answers, w.Kinds = AnswersStatus, []string{"notify", "remediate"} },
		"addresses[0]: given 10.0.0.1/8":         func(w *WebhookTarget) { w.Addresses = []string{"10.0.0.1/8"} },
		"addresses[0]: given 0.0.0.0/0":          func(w *WebhookTarget) { w.Addresses = []string{"0.0.0.0/0"} },
		"tls.cert":                               func(w *WebhookTarget) { w.TLS.Key = "k" },
		"tls: given a value":                     func(w *WebhookTarget) { w.URL, w.Plaintext, w.TLS.CA = "http://a/", true, "ca" },
		"requestTimeout: given 1ms":              func(w *WebhookTarget) { w.RequestTimeout = Duration(time.Millisecond) },
	} {
		w := goodTarget()
		change(&w)
		err := Webhooks{Targets: []WebhookTarget{w}}.Validate()
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "geheim") {
			t.Errorf("%s: %v", want, err)
		}
	}
	if err := (Webhooks{Targets: []WebhookTarget{goodTarget(), goodTarget()}}).Validate(); err == nil ||
		!strings.Contains(err.Error(), "targets[1].name: given ticket: want each name once") {
		t.Errorf("%v", err)
	}
}

func TestAlertmanagerValidationNamesField(t *testing.T) {
	good := func() Alertmanagers { return Alertmanagers{URLs: []string{"http://a:9093"}} }
	if err := good().Validate(); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*Alertmanagers){
		"urls: given 0":                func(a *Alertmanagers) { a.URLs = nil },
		"urls[1]: given http://a":      func(a *Alertmanagers) { a.URLs = []string{"http://a:9093", "http://a:9093"} },
		"urls[0]: given a:9093":        func(a *Alertmanagers) { a.URLs = []string{"a:9093"} },
		"tls: given a value":           func(a *Alertmanagers) { a.TLS.CA = "x" },
		"labels.node: given node":      func(a *Alertmanagers) { a.Labels = map[string]string{"node": "x"} },
		"labels.notice: given nothing": func(a *Alertmanagers) { a.Labels = map[string]string{"notice": ""} },
		"labels.a-b: given a-b":        func(a *Alertmanagers) { a.Labels = map[string]string{"a-b": "x"} },
		"labels.__x: given __x":        func(a *Alertmanagers) { a.Labels = map[string]string{"__x": "x"} },
		"labels.site: given nothing":   func(a *Alertmanagers) { a.Labels = map[string]string{"site": ""} },
		"link: given x":                func(a *Alertmanagers) { a.Link = "x" },
		"resend: given 1s":             func(a *Alertmanagers) { a.Resend = Duration(time.Second) },
		"hold: given 2m":               func(a *Alertmanagers) { a.Hold = Duration(2 * time.Minute) },
		"requestTimeout: given 2h":     func(a *Alertmanagers) { a.RequestTimeout = Duration(2 * time.Hour) },
	} {
		a := good()
		change(&a)
		if err := a.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

func TestPrivateAddressNeedsPrefix(t *testing.T) {
	only := []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("::1/128")}
	for _, c := range []struct {
		ip       string
		public   bool // may be called without prefixes
		mentions bool // where only is
	}{
		{"8.8.8.8", true, false},
		{"2606:4700::1", true, false},
		{"10.1.2.3", false, true},
		{"::ffff:10.1.2.3", false, true},
		{"10.2.0.1", false, false},
		{"192.168.1.1", false, false},
		{"172.16.0.1", false, false},
		{"127.0.0.1", false, false},
		{"::ffff:127.0.0.1", false, false},
		{"::1", false, true},
		{"169.254.169.254", false, false},
		{"fe80::1%eth0", false, false},
		{"fd00::1", false, false},
		{"fec0::1", false, false},
		{"0.0.0.0", false, false},
		{"0.1.2.3", false, false},
		{"::", false, false},
		{"100.64.1.1", false, false},
		{"198.18.0.1", false, false},
		{"224.0.0.1", false, false},
		{"255.255.255.255", false, false},
		{"250.0.0.1", false, false},
		{"64:ff9b::7f00:1", false, false}, // 127.0.0.1 behind a translator
		{"2002:7f00:1::", false, false},
	} {
		ip := netip.MustParseAddr(c.ip)
		if err := CheckAddress(ip, nil); (err == nil) != c.public {
			t.Errorf("%s, nothing named: %v", ip, err)
		}
		if err := CheckAddress(ip, only); (err == nil) != c.mentions {
			t.Errorf("%s, %v named: %v", ip, only, err)
		}
	}
}

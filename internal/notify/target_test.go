package notify

import (
	"strings"
	"testing"
)

// hook is a URL with credentials in its path and its query.
const hook = "https://hooks.slack.example/services/T0/B0/hunter2?sig=hunter3"

func TestTargetIsRefusedWithFieldAndAllowedValues(t *testing.T) {
	good := Target{Name: "chat", URL: hook, Format: Slack}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*Target){
		`name: given "Chat": want 1 to 50`:              func(t *Target) { t.Name = "Chat" },
		`name: given ""`:                                func(t *Target) { t.Name = "" },
		`want 1 to 50 of a-z`:                           func(t *Target) { t.Name = strings.Repeat("a", 51) },
		`format: given "slak": want generic, slack`:     func(t *Target) { t.Format = "slak" },
		"url: given nothing: want http:// or https://":  func(t *Target) { t.URL = "" },
		`url: given the scheme "file"`:                  func(t *Target) { t.URL = "file:///hunter2" },
		"url: given 3017 bytes":                         func(t *Target) { t.URL = "https://hunter2/" + strings.Repeat("a", 3001) },
		"url: given one with a user":                    func(t *Target) { t.URL = "https://ann:hunter2@chat.example/" },
		"url: given one with a fragment":                func(t *Target) { t.URL = hook + "#x" },
		"url: given one without a host":                 func(t *Target) { t.URL = "https:///hunter2" },
		"url: given a text that is no URL":              func(t *Target) { t.URL = "https://chat.example/hunter2\n" },
		"address 169.254.169.254: want that of one":     func(t *Target) { t.URL = "http://169.254.169.254/hunter2" },
		"address 64:ff9b::a9fe:a9fe":                    func(t *Target) { t.URL = "http://[64:ff9b::a9fe:a9fe]/hunter2" },
		"address fd00:ec2::254":                         func(t *Target) { t.URL = "http://[fd00:ec2::254]/hunter2" },
		"address 224.0.0.1":                             func(t *Target) { t.URL = "http://224.0.0.1/hunter2" },
		"url: given one with a query: want the address": func(t *Target) { t.Format = Alertmanager },
		"secret: given one with the format slack":       func(t *Target) { t.Secret = "whsec_" + strings.Repeat("aGVs", 8) },
		"secret: want whsec_ and 24 to 64 bytes":        func(t *Target) { t.Format, t.Secret = Generic, "hunter2" },
	} {
		bad := good
		change(&bad)
		err := bad.Validate()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v: want %q", bad, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "hunter") {
			t.Errorf("the error shows a credential: %v", err)
		}
	}
	for _, u := range []string{"http://127.0.0.1:8080/x", "http://10.1.2.3/", "http://[::1]:9/"} {
		if err := (Target{Name: "a", URL: u, Format: Generic}).Validate(); err != nil {
			t.Errorf("%s: %v", u, err)
		}
	}
}

func TestTargetIsShownWithoutCredentials(t *testing.T) {
	a := Target{URL: hook}
	if a.Host() != "hooks.slack.example" || len(a.Fingerprint()) != 8 || a.Fingerprint() == (Target{URL: hook + "4"}).Fingerprint() {
		t.Errorf("host %q, fingerprint %q: want the host, and 8 digits that differ between URLs", a.Host(), a.Fingerprint())
	}
}

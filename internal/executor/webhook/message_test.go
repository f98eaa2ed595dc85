package webhook

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/lofamo/lofamo/examples/remediator/receiver"
	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/response"
)

// TestMessageEqualsDocumentedBody checks the body shown in docs/webhooks.md.
func TestMessageEqualsDocumentedBody(t *testing.T) {
	at := time.Date(2026, 11, 21, 7, 0, 30, 0, time.FixedZone("x", 3600))
	j := jobOf(response.WebhookRemediate, 3, undo, func(j *executor.Job) { j.Incident = "k3f9-7qm2xw4d" })
	got, err := json.Marshal(message(j, ActionUndo, at))
	want := `{"schema":"lofamo.io/webhook/v1","action":"undo","kind":"remediate","idempotencyKey":"test/r5-1/2/undo","undoes":"test/r5-1/2",` +
		`"cluster":"test",` +
		`"response":"r5-1","policy":"p","step":2,"attempt":3,"token":5,"recheck":false,"deadline":"2026-11-21T06:00:30Z",` +
		`"target":{"node":"n1-0-0","component":"host"},` +
		`"fault":{"state":"FAILED","cause":"HOST","since":"1970-01-01T00:16:40Z","detail":"dead"},"incident":"k3f9-7qm2xw4d"}`
	if err != nil || string(got) != want {
		t.Errorf("%s, %v\nwant %s", got, err, want)
	}
	if b, err := json.Marshal(message(jobOf(response.WebhookNotify, 1), ActionDo, at)); err != nil || strings.Contains(string(b), "incident") {
		t.Errorf("without an incident: %s, %v", b, err)
	}
	group := jobOf(response.WebhookNotify, 1, func(j *executor.Job) {
		j.Target = response.Target{Group: "ROW/x=1"}
		j.Members = make([]fault.NodeID, MaxMembers+10)
		for i := range j.Members {
			j.Members[i] = "n"
		}
	})
	if m := message(group, ActionDo, at).Target; m.Group != "ROW/x=1" || m.MemberCount != MaxMembers+10 ||
		len(m.Members) != MaxMembers || m.Node != "" || m.Component != "" {
		t.Errorf("%+v", m)
	}
}

// TestSignatureEqualsStandardExample checks the example of Standard Webhooks.
func TestSignatureEqualsStandardExample(t *testing.T) {
	got := sign(secretOf(t, secretText), "msg_p5jXN8AQM9LWM0D4loKWxJek", time.Unix(1614265330, 0), []byte(`{"test": 2432232314}`))
	if want := "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// TestBothSecretsSignDuringRotation: during a rotation, receivers with either secret accept the signature, and the files are read for every
// request.
func TestBothSecretsSignDuringRotation(t *testing.T) {
	s := serve(t, outcome("done", ""))
	w := targetAt(t, s.URL)
	old, fresh := w.SecretFiles[0], secretFile(t, otherText)
	for i, c := range []struct {
		files    []string
		old, new bool
	}{{[]string{old}, true, false}, {[]string{fresh, old}, true, true}, {[]string{fresh}, false, true}} {
		w.SecretFiles = c.files
		x := newExecutor(t, w)
		if got := x.Do(t.Context(), jobOf(response.WebhookNotify, 1)); got.Outcome != response.Succeeded {
			t.Fatalf("%+v", got)
		}
		m := s.told[i]
		for text, want := range map[string]bool{secretText: c.old, otherText: c.new} {
			err := receiver.Verify([][]byte{secretOf(t, text)}, m.header, m.body, time.Now())
			if (err == nil) != want {
				t.Errorf("%d: %s…: %v", i, text[:10], err)
			}
		}
	}
	m := s.told[0]
	secrets := [][]byte{secretOf(t, secretText)}
	if m.header.Get(HeaderKey) != "test/r5-1/2" || m.header.Get(HeaderID) != "test/r5-1/2" ||
		m.header.Get("Content-Type") != "application/json" {
		t.Errorf("%v", m.header)
	}
	for name, spoil := range map[string]func(h http.Header, b []byte) []byte{
		"body": func(_ http.Header, b []byte) []byte { return append([]byte(" "), b...) },
		"id":   func(h http.Header, b []byte) []byte { h.Set(HeaderID, "test/r5-1/3"); return b },
		"time": func(h http.Header, b []byte) []byte { h.Set(HeaderTimestamp, "1"); return b },
		"none": func(h http.Header, b []byte) []byte { h.Del(HeaderSignature); return b },
	} {
		h := m.header.Clone()
		b := spoil(h, m.body)
		if err := receiver.Verify(secrets, h, b, time.Now()); err == nil {
			t.Errorf("%s is other than it was signed, and it is taken", name)
		}
	}
	if err := receiver.Verify(secrets, m.header, m.body, time.Now().Add(time.Hour)); err == nil {
		t.Error("a request of an hour ago is taken")
	}
}

func TestMissingSecretStopsRequest(t *testing.T) {
	s := serve(t, outcome("done", ""))
	w := targetAt(t, s.URL)
	x := newExecutor(t, w)
	x.target("hook").secrets = func() ([][]byte, error) { return readSecrets([]string{"/nonexistent"}) }
	if got := x.Do(t.Context(), jobOf(response.WebhookNotify, 1)); got.Outcome != response.Unchanged ||
		!strings.Contains(got.Detail, "/nonexistent") {
		t.Errorf("%+v", got)
	}
	if got := x.Do(t.Context(), jobOf(response.WebhookNotify, 2, recheck)); got.Outcome != response.NotKnown {
		t.Errorf("%+v", got)
	}
	if len(s.told) != 0 {
		t.Error("something was sent without a signature")
	}
}

func TestVerdictOfEachReply(t *testing.T) {
	for _, c := range []struct {
		status   int
		body     string
		contract bool
		want     verdict
		after    time.Duration
	}{
		{200, `{"schema":"lofamo.io/webhook/v1","outcome":"done","more":1}`, true, verdictDone, 0},
		{202, `{"schema":"lofamo.io/webhook/v1","outcome":"accepted","retryAfter":1.5}`, true, verdictAccepted, 1500 * time.Millisecond},
		{202, `{"schema":"lofamo.io/webhook/v1","outcome":"accepted","retryAfter":1e300}`, true, verdictAccepted, time.Hour},
		{503, `{"schema":"lofamo.io/webhook/v1","outcome":"later"}`, true, verdictLater, 0},
		{500, `{"schema":"lofamo.io/webhook/v1","outcome":"unknown"}`, true, verdictUnknown, 0},
		{200, `{"schema":"lofamo.io/webhook/v1","outcome":"done"} x`, true, verdictGarbled, 0},
		{200, `{"schema":"lofamo.io/webhook/v1","outcome":"Done"}`, true, verdictGarbled, 0},
		{200, `{"schema":"lofamo.io/webhook/v1","outcome":"done","retryAfter":-1}`, true, verdictGarbled, 0},
		{200, `{"schema":"lofamo.io/webhook/v1","outcome":"done","attempt":-1}`, true, verdictGarbled, 0},
		{200, ``, true, verdictGarbled, 0},
		{204, ``, false, verdictDone, 0},
		{301, ``, false, verdictGarbled, 0},
		{303, ``, true, verdictGarbled, 0},
		{404, ``, true, verdictRefused, 0},
		{404, ``, false, verdictRefused, 0},
		{408, ``, true, verdictGarbled, 0},
		{409, ``, true, verdictGarbled, 0},
		{429, ``, true, verdictLater, 7 * time.Second},
		{503, ``, true, verdictGarbled, 7 * time.Second},
	} {
		h := http.Header{}
		if c.after == 7*time.Second {
			h.Set("Retry-After", "7")
		}
		if got := heard(executor.HTTPAnswer{Status: c.status, Header: h, Body: []byte(c.body)}, c.contract); got.Verdict != c.want ||
			got.After != c.after {
			t.Errorf("%d %q, contract %t: %+v", c.status, c.body, c.contract, got)
		}
	}
}

// FuzzReply: for any answer of a receiver, the result is bounded and printable, and only an answer of the contract has
// a meaning.
func FuzzReply(f *testing.F) {
	f.Add(200, `{"schema":"lofamo.io/webhook/v1","outcome":"done","attempt":3,"retryAfter":1,"detail":"\u001b[2J"}`, "1")
	f.Add(503, `{}`, "Fri, 01 Jan 2027 00:00:00 GMT")
	f.Add(429, `[]`, "99999999999999999999")
	f.Fuzz(func(t *testing.T, status int, body, after string) {
		h := http.Header{"Retry-After": {after}}
		for _, contract := range []bool{false, true} {
			got := heard(executor.HTTPAnswer{Status: status, Header: h, Body: []byte(body)}, contract)
			if got.Verdict < verdictDone || got.Verdict > verdictGarbled || got.After < 0 || got.After > maxRetryAfter*time.Second ||
				got.Attempt < 0 {
				t.Errorf("%+v", got)
			}
			if len(got.Detail) > 2*executor.MaxDetail || strings.ContainsFunc(got.Detail, unicode.IsControl) {
				t.Errorf("detail %q", got.Detail)
			}
			if said := got.Verdict == verdictDone; said && (contract && !strings.Contains(body, "webhook/v1") || !contract &&
				(status < 200 || status > 299)) {
				t.Errorf("%d %q is taken for done", status, body)
			}
		}
	})
}

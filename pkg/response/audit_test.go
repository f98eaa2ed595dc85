package response

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

var start = time.Date(2027, 1, 15, 8, 0, 0, 0, time.UTC)

// chain returns n decisions, of every form.
func chain(t testing.TB, n int) []AuditLine {
	t.Helper()
	var out []AuditLine
	var last AuditLine
	for i := range n {
		d := Decision{At: start.Add(time.Duration(i) * 500 * time.Millisecond), Act: Act(1 + i%int(Observes)),
			Reason: Reason(i % 30), Policy: "p"}
		switch i % 3 {
		case 0:
			d.Target, d.Response = Target{Node: "n1-0-1", Component: fault.ComponentMemory}, "r7-1"
			d.Step, d.Kind, d.Attempt = "cordon", KubernetesCordon, 1
		case 1:
			d.Target, d.Subject, d.Detail = Target{Group: "label/rack=r7"}, "operator/ann", "a < b & \"c\"\n\xff"
		}
		l, err := ChainAudit(last, d)
		if err != nil {
			t.Fatal(err)
		}
		out, last = append(out, l), l
	}
	return out
}

func check(lines []AuditLine) error {
	var c AuditChecker
	for _, l := range lines {
		b, err := l.Marshal()
		if err != nil {
			return err
		}
		if err := c.Check(append(b, '\n')); err != nil {
			return err
		}
	}
	if n := uint64(len(lines)); c.Lines() != n {
		return fmt.Errorf("%d lines checked, want %d", c.Lines(), n)
	}
	return nil
}

// TestAuditLineFormIsFixed fixes the form of a line for ever, because exports and stores contain it.
func TestAuditLineFormIsFixed(t *testing.T) {
	l := chain(t, 1)[0]
	b, err := l.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"seq":1,"prev":"0000000000000000000000000000000000000000000000000000000000000000","at":"2027-01-15T08:00:00Z",` +
		`"act":"proposed","response":"r7-1",` +
		`"policy":"p","node":"n1-0-1","component":"memory","step":"cordon","kind":"kubernetes.cordon","attempt":1,"hash":"`
	if got := string(b); !strings.HasPrefix(got, want) || got != want+hex.EncodeToString(l.Hash[:])+`"}` {
		t.Errorf("%s", got)
	}
	if got := hex.EncodeToString(l.Hash[:]); got != "8599a00c92f063398120457c69a62ed2b00bbf4f287eba553291322207c956f7" {
		t.Errorf("hash %s", got)
	}
}

func TestAuditLineRoundTrip(t *testing.T) {
	lines := chain(t, 60)
	if err := check(lines); err != nil {
		t.Fatal(err)
	}
	for _, l := range lines {
		b, err := l.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		got, err := UnmarshalAudit(b)
		if err != nil || got != l {
			t.Errorf("%s: read as %+v, %v: want %+v", b, got, err, l)
		}
	}
}

// TestCheckerFindsEveryChangedLine checks that every changed, omitted, inserted or moved line is found.
func TestCheckerFindsEveryChangedLine(t *testing.T) {
	for _, tc := range []struct {
		what   string
		change func([]AuditLine) []AuditLine
		want   string
	}{
		{"a changed text", func(l []AuditLine) []AuditLine { l[3].Decision.Detail = "other"; return l }, "line 4: its hash"},
		{"a changed subject", func(l []AuditLine) []AuditLine { l[1].Decision.Subject = "operator/bob"; return l }, "line 2: its hash"},
		{"a changed time", func(l []AuditLine) []AuditLine { l[2].Decision.At = l[2].Decision.At.Add(1); return l }, "line 3: its hash"},
		{"a line left out", func(l []AuditLine) []AuditLine { return append(l[:4], l[5:]...) }, "line 6: it comes after line 4"},
		{"two lines exchanged", func(l []AuditLine) []AuditLine { l[4], l[5] = l[5], l[4]; return l }, "line 6: it comes after line 4"},
		{"a line made anew, with its hash", func(l []AuditLine) []AuditLine {
			d := l[3].Decision
			d.Detail = "other"
			l[3], _ = ChainAudit(l[2], d)
			return l
		}, "line 5: its previous hash"},
		{"a first line that has one before it", func(l []AuditLine) []AuditLine {
			first, err := ChainAudit(AuditLine{Hash: l[0].Hash}, l[0].Decision)
			if err != nil {
				t.Fatal(err)
			}
			return []AuditLine{first}
		}, "line 1: it names"},
		{"a number 0", func(l []AuditLine) []AuditLine {
			first, err := ChainAudit(AuditLine{Seq: ^uint64(0)}, l[0].Decision)
			if err != nil {
				t.Fatal(err)
			}
			return []AuditLine{first}
		}, "line 0"},
	} {
		err := check(tc.change(chain(t, 10)))
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v: want %q", tc.what, err, tc.want)
		}
	}
	if err := check(chain(t, 10)[4:]); err != nil {
		t.Errorf("the end of a chain: %v", err)
	}
}

// TestCheckerAcceptsLaterWords checks that lines of a later version with unknown keys and words pass, and that lines in another form
// do not.
func TestCheckerAcceptsLaterWords(t *testing.T) {
	said := `{"seq":1,"prev":"` + noHash + `","act":"slept on it","mood":"good"`
	sum := sha256.Sum256([]byte(said + "}"))
	var c AuditChecker
	if err := c.Check(fmt.Appendf(nil, `%s,"hash":"%x"}`, said, sum)); err != nil {
		t.Error(err)
	}
	if seq, hash := c.Last(); seq != 1 || hash != hex.EncodeToString(sum[:]) {
		t.Errorf("%d, %s", seq, hash)
	}
	for _, bad := range []string{"", "{", fmt.Sprintf(`{"hash":"%x",%s}`, sum, said[1:]),
		fmt.Sprintf(`{"act":1,"seq":2,"prev":"%x","hash":"%x"}`, sum, sum)} {
		if err := c.Check([]byte(bad)); err == nil {
			t.Errorf("%s: taken", bad)
		}
	}
}

func TestUnmarshalRefusesOtherForms(t *testing.T) {
	b, err := chain(t, 1)[0].Marshal()
	if err != nil {
		t.Fatal(err)
	}
	line := string(b)
	for _, tc := range []struct{ from, to, want string }{
		{`"seq":1`, `"seq": 1`, "not in the form"},
		{`"act":"proposed"`, `"act":"thought of"`, `act: given "thought of"`},
		{`"policy":"p"`, `"policy":"p","reason":"none"`, `reason: given "none"`},
		{`"node":"n1-0-1"`, `"nodes":"n1-0-1"`, "unknown field"},
		{`"component":"memory"`, `"component":"soul"`, "soul"},
		{`"at":"2027-`, `"at":"27-`, "at: given"},
		{`"prev":"00`, `"prev":"0`, "prev: given"},
		{`"hash":"`, `"hash":"zz`, "hash: given"},
		{`}`, `} {}`, "not in the form"},
		{`{`, `[`, "not an audit line"},
		{`"policy":"p"`, `"policy":"` + strings.Repeat("p", MaxAuditLine) + `"`, "want at most"},
	} {
		bad := strings.Replace(line, tc.from, tc.to, 1)
		if _, err := UnmarshalAudit([]byte(bad)); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%.200s: %v: want %q", bad, err, tc.want)
		}
	}
	if _, err := ChainAudit(AuditLine{}, Decision{Act: Opens, Detail: strings.Repeat("a", MaxAuditLine)}); err == nil {
		t.Error("a line that nobody could read is written")
	}
}

// FuzzUnmarshal checks that no input causes a panic, and that every accepted line has only one form.
func FuzzUnmarshal(f *testing.F) {
	for _, l := range chain(f, 6) {
		b, err := l.Marshal()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add(fmt.Appendf(nil, `{"seq":1,"prev":%q}`, strings.Repeat("0", 64)))
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := UnmarshalAudit(b)
		if err != nil {
			return
		}
		again, err := l.Marshal()
		if err != nil || !bytes.Equal(again, bytes.TrimRight(b, "\r\n")) {
			t.Errorf("%q is writtenAudit as %q, %v", b, again, err)
		}
		var c AuditChecker
		if err := c.Check(b); (err == nil) != (c.Lines() == 1) {
			t.Errorf("%q: %v, and %d lines", b, err, c.Lines())
		}
	})
}

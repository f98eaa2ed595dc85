package half

import (
	"bytes"
	"errors"
	"path/filepath"
	"testing"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/selftest"
	"github.com/lofamo/lofamo/pkg/watchdog/regfile"

	"github.com/lofamo/lofamo/internal/pki"
)

const cluster = "test"

var self = fault.Origin{Node: "n0-0-0", Half: fault.HalfHost}

// modules returns the path of a probe through each module, made once.
func modules(tb testing.TB) map[string]func([]byte) ([]byte, error) {
	tb.Helper()
	dir := tb.TempDir()
	ca, err := pki.NewCA(cluster)
	if err != nil {
		tb.Fatal(err)
	}
	files := [3]string{filepath.Join(dir, "ca.pem"), filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")}
	if err := errors.Join(ca.Save(files[0], filepath.Join(dir, "ca.key")),
		ca.IssueTo(files[1], files[2], pki.NodeIdentity(cluster, self.Node, self.Half), nil, nil)); err != nil {
		tb.Fatal(err)
	}
	signer, err := pki.LoadSigner(files[1], files[2])
	if err != nil {
		tb.Fatal(err)
	}
	verifier, err := pki.LoadVerifier(files[0], cluster)
	if err != nil {
		tb.Fatal(err)
	}
	page, err := regfile.Open(filepath.Join(dir, "registers"), self.Half)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = page.Close() })
	return map[string]func([]byte) ([]byte, error){
		"report": func(b []byte) ([]byte, error) { return ProbeReport(self, b, signer, verifier) },
		"bulk":   func(b []byte) ([]byte, error) { return ProbeBulk(self, b) },
		"register": func(b []byte) ([]byte, error) {
			r, ok := ProbeRegister(page, selftest.Probe{}, b).(selftest.Returned)
			if !ok {
				return nil, errors.New("not returned")
			}
			return r.Data, nil
		},
	}
}

// Probes of every pattern, and of every size that the tests use, come back unchanged.
func TestProbesComeThrough(t *testing.T) {
	for name, through := range modules(t) {
		for _, size := range []int{16, 64, 100, 400} {
			for _, fill := range []byte{0, 0xff, 0x55, 0x80} {
				b := bytes.Repeat([]byte{fill}, size)
				copy(b, "eight.by")
				back, err := through(bytes.Clone(b))
				if err != nil || !bytes.Equal(back, b) {
					t.Errorf("%s, %d bytes of %#x: %v, %x", name, size, fill, err, back)
				}
			}
		}
	}
	large := bytes.Repeat([]byte("0123456789"), 500)
	if back, err := ProbeBulk(self, large); err != nil || !bytes.Equal(back, large) {
		t.Errorf("a large object: %v", err)
	}
}

// Without a page the test of the register is void.
func TestNoPageIsNoFault(t *testing.T) {
	page, err := regfile.Open(filepath.Join(t.TempDir(), "registers"), self.Half)
	if err != nil {
		t.Fatal(err)
	}
	if err := page.Close(); err != nil {
		t.Fatal(err)
	}
	if ev, ok := ProbeRegister(page, selftest.Probe{ID: 7}, make([]byte, 16)).(selftest.Void); !ok || ev.ID != 7 {
		t.Errorf("%+v", ev)
	}
}

// The cost of a test. All tests but the register's run without the half's mutex.
func BenchmarkProbes(b *testing.B) {
	probe := bytes.Repeat([]byte{0x5a}, 400)
	for name, through := range modules(b) {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, err := through(probe); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

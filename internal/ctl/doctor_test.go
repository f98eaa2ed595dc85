package ctl

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/ctl/ctltest"
	"github.com/lofamo/lofamo/internal/testing/freeport"
)

// period returns a certificate of a period, with its PEM form.
func period(t *testing.T, from, to time.Time) (tls.Certificate, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	x := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: from, NotAfter: to}
	der, err := x509.CreateCertificate(rand.Reader, x, x, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// enrolPort serves TLS as a supervisor's port for enrolment does.
func enrolPort(t *testing.T, from, to time.Time) string {
	t.Helper()
	c, _ := period(t, from, to)
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{c}, MinVersion: tls.VersionTLS13,
		NextProtos: []string{"h2"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.(*tls.Conn).Handshake() //nolint:forcetypeassert // of tls.Listen
			_ = c.Close()
		}
	}()
	return l.Addr().String()
}

// check is one line of doctor.
type check struct{ Check, Result, Detail, Remedy string }

// diagnose runs doctor and returns its lines.
func diagnose(t *testing.T, args ...string) (result, []check) {
	t.Helper()
	got := runAt(t, time.Now(), nil, append([]string{"doctor", "-o", "json"}, args...)...)
	var out struct{ Checks []check }
	if err := json.Unmarshal([]byte(got.stdout), &out); err != nil {
		t.Fatalf("%v: exit code %d: %s%s", err, got.code, got.stdout, got.stderr)
	}
	for _, c := range out.Checks {
		if (c.Result != "OK") != (c.Remedy != "") || c.Detail == "" {
			t.Errorf("%+v: want a remedy if it is not OK, and a detail", c)
		}
	}
	return got, out.Checks
}

// line returns the check whose name begins so.
func line(t *testing.T, all []check, name string) check {
	t.Helper()
	for _, c := range all {
		if strings.HasPrefix(c.Check, name) {
			return c
		}
	}
	t.Fatalf("no check %q in %+v", name, all)
	return check{}
}

func TestDoctorBeforeJoining(t *testing.T) {
	now := time.Now()
	good, early := enrolPort(t, now.Add(-time.Hour), now.Add(24*time.Hour)), enrolPort(t, now.Add(time.Hour), now.Add(48*time.Hour))
	closed := freeport.Addr(t).String()
	_, all := diagnose(t, "--join", good+","+early+","+closed)
	for name, want := range map[string]string{
		"TCP " + good: "OK", "certificate of " + good: "OK", "TCP " + early: "OK", "certificate of " + early: "FAILED",
		"TCP " + closed: "FAILED", "rights": line(t, all, "rights").Result,
	} {
		if got := line(t, all, name); got.Result != want {
			t.Errorf("%s: %+v, want %s", name, got, want)
		}
	}
	if got := line(t, all, "certificate of "+early); !strings.Contains(got.Detail, "this machine's clock shows") ||
		!strings.Contains(got.Remedy, "set this machine's clock") {
		t.Errorf("certificate that has not begun: %+v", got)
	}
	_, port, _ := net.SplitHostPort(closed)
	if got := line(t, all, "TCP "+closed); !strings.Contains(got.Remedy, "open TCP "+port+" from this machine") {
		t.Errorf("closed port: %+v", got)
	}
	if got := runAt(t, now, nil, "doctor", "--join", closed); got.code != 1 || !strings.Contains(got.stderr, "checks failed") ||
		!strings.HasPrefix(got.stdout, "CHECK") {
		t.Errorf("exit code %d: %s%s", got.code, got.stdout, got.stderr)
	}
}

func TestDoctorRefusesWrongUsage(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "agent.yaml")
	text := "stateDir: " + t.TempDir() + "\njoin: {supervisors: [127.0.0.1:1], tokenFile: /t}\n"
	if err := os.WriteFile(empty, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		"--join 10.0.0.1:x": `--join "10.0.0.1:x": want HOST or HOST:PORT`, "--address 10.0.0.1": "goes with --join",
		"--join 10.0.0.1 --config x":   "want only one",
		"--join 10.0.0.1 --address x":  `--address "x": want the IP`,
		"--config /nowhere/agent.yaml": "before this machine joins, give --join", "--config " + empty: "has not enrolled yet",
		"extra": "want none",
	} {
		if got := run(t, nil, append([]string{"doctor"}, strings.Fields(args)...)...); got.code != 2 || !strings.Contains(got.stderr, want) {
			t.Errorf("doctor %s: exit code %d: %s, want 2 and %q", args, got.code, got.stderr, want)
		}
	}
}

func TestDoctorAfterJoining(t *testing.T) {
	now, dir := time.Now(), t.TempDir()
	for name, to := range map[string]time.Time{"host.pem": now.Add(90 * 24 * time.Hour), "dnp.pem": now.Add(-time.Minute)} {
		_, b := period(t, now.Add(-91*24*time.Hour), to)
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	heard, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = heard.Close() }()
	none, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	silent := none.LocalAddr().String()
	_ = none.Close() // the kernel rejects datagrams to it
	m := ctltest.Healthy(t, "2x2x2")
	m.Nodes.Nodes[0].Delivery = &lofamov1.DeliveryStatus{Rails: []*lofamov1.RailStatus{
		{Name: "direct/eth0", Answered: 7}, {Name: "direct/eth1", Down: true}, {Name: "gossip", Down: true},
	}}
	r := ctltest.StartRemote(t, m)
	file := filepath.Join(dir, "agent.yaml")
	text := "node: " + m.Nodes.Nodes[0].GetId() + "\nstateDir: " + dir + "\ntls: {hostCert: " + filepath.Join(dir, "host.pem") +
		", dnpCert: " + filepath.Join(dir, "dnp.pem") + "}\nsupervisors: [{id: s1, report: \"" + heard.LocalAddr().String() +
		"\"}, {id: s2, report: \"" + silent + "\"}]\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got, all := diagnose(t, r.Flags("--config", file)...)
	for name, want := range map[string]string{
		"UDP " + heard.LocalAddr().String(): "UNKNOWN", "UDP " + silent: "FAILED",
		"certificate " + filepath.Join(dir, "host.pem"): "OK", "certificate " + filepath.Join(dir, "dnp.pem"): "FAILED",
		"UDP of node " + m.Nodes.Nodes[0].GetId() + ", both ways, rail direct/eth0": "OK",
		"UDP of node " + m.Nodes.Nodes[0].GetId() + ", both ways, rail direct/eth1": "FAILED", "disk": "OK", "rights": "OK",
	} {
		if c := line(t, all, name); c.Result != want {
			t.Errorf("%s: %+v, want %s", name, c, want)
		}
	}
	if got.code != 1 || !strings.Contains(got.stderr, "checks failed") {
		t.Errorf("exit code %d: %s", got.code, got.stderr)
	}
	b := make([]byte, 2000)
	if n, _, err := heard.ReadFrom(b); err != nil || n != 1232 {
		t.Errorf("a datagram of %d bytes, %v: want 1232", n, err)
	}
}

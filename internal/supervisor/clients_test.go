package supervisor_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/supervisor"
	"github.com/lofamo/lofamo/internal/testing/requirements"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
	"github.com/lofamo/lofamo/pkg/fault"
)

// guideAddress and guideProtos stand in docs/clients.md for a supervisor's address and the packages' .proto files.
const guideAddress, guideProtos = "10.0.0.1:7946", "/usr/share/lofamo/proto"

// withoutEd25519 restricts OpenSSL to the signatures that BoringSSL offers.
const withoutEd25519 = `openssl_conf = init
[init]
ssl_conf = ssl
[ssl]
system_default = defaults
[defaults]
SignatureAlgorithms = ecdsa_secp256r1_sha256:rsa_pss_rsae_sha256:rsa_pkcs1_sha256:ecdsa_secp384r1_sha384:rsa_pss_rsae_sha384
`

// guide runs the programs of docs/clients.md against a real supervisor.
type guide struct {
	*testing.T
	dir    string              // the working directory of all commands
	grpc   string              // address of the supervisor
	blocks map[string][]string // of the page, by language
}

var fenced = regexp.MustCompile("(?ms)^```(\\w+)\n(.*?)^```$")

// newGuide starts a supervisor, and makes a directory with the files of a viewer.
func newGuide(t *testing.T) (*guide, *supervisortest.Cluster) {
	t.Helper()
	c := supervisortest.New(t, supervisortest.Options{})
	start(t, c.Configs[0])
	c.AwaitLeader(t, 0)
	g := &guide{T: t, dir: t.TempDir(), grpc: c.Configs[0].GRPC, blocks: map[string][]string{}}
	page, err := os.ReadFile("../../docs/clients.md")
	if err != nil {
		t.Fatal(err)
	}
	api, err := filepath.Abs("../../api")
	if err != nil {
		t.Fatal(err)
	}
	real := strings.NewReplacer(guideAddress, g.grpc, guideProtos, api)
	for _, m := range fenced.FindAllStringSubmatch(string(page), -1) {
		g.blocks[m[1]] = append(g.blocks[m[1]], real.Replace(m[2]))
	}
	for _, name := range []string{"ca.pem", "viewer.pem", "viewer.key"} {
		b, err := os.ReadFile(filepath.Join(c.Dir, name))
		if err != nil {
			t.Fatal(err)
		}
		g.write(name, string(b))
	}
	return g, c
}

func (g *guide) write(name, text string) string {
	g.Helper()
	path := filepath.Join(g.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		g.Fatal(err)
	}
	return path
}

// shell runs one block of commands, and returns its output.
func (g *guide) shell(t *testing.T, text string, env ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "bash", "-euc", text)
	cmd.Dir, cmd.Env, cmd.WaitDelay = g.dir, append(os.Environ(), env...), time.Second
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// TestReadmeClients runs every block of commands and every program of docs/clients.md.
func TestReadmeClients(t *testing.T) {
	g, c := newGuide(t)
	if len(g.blocks["sh"]) != 2 || len(g.blocks["python"]) != 2 || len(g.blocks["go"]) != 1 || len(g.blocks) != 3 {
		t.Fatalf("docs/clients.md has the blocks %q: want two each of sh and python, and one of go", g.blocks)
	}
	t.Run("grpcurl", func(t *testing.T) {
		tool := requirements.Set(t, "make builds grpcurl", "LOFAMO_GRPCURL")
		if err := os.Symlink(tool, filepath.Join(g.dir, "grpcurl")); err != nil {
			t.Fatal(err)
		}
		out, err := g.shell(t, g.blocks["sh"][0], "PATH="+g.dir+":"+os.Getenv("PATH"))
		for _, want := range []string{"lofamo.v1.FaultSupervisor\n", "rpc ListNodes ( .lofamo.v1.ListNodesRequest )", `"id": "n0-0-0"`} {
			if err != nil || !strings.Contains(out, want) {
				t.Errorf("%v: want %q in\n%s", err, want, out)
			}
		}
	})
	t.Run("Go", func(t *testing.T) {
		main := filepath.Join(g.dir, "main.go")
		g.write("main.go", g.blocks["go"][0])
		bin := filepath.Join(g.dir, "nodes")
		if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", bin, main).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if out, err := g.shell(t, bin); err != nil || !strings.Contains(out, "n0-0-0 ") {
			t.Errorf("%v\n%s", err, out)
		}
	})
	t.Run("Python", func(t *testing.T) { g.python(t, c) })
}

// TestExpiredSecondPairDoesNotStopStart: the pair is optional, so a replica starts without it, and logs an error that names
// the file.
func TestExpiredSecondPairDoesNotStopStart(t *testing.T) {
	t.Parallel()
	c := supervisortest.New(t, supervisortest.Options{})
	supervisortest.Expire(t, c.Dir, c.Configs[0].ECDSA.Cert)
	var log bytes.Buffer
	s, err := supervisor.New(c.Configs[0], slog.New(slog.NewTextHandler(&log, nil)), supervisor.PatientLease)
	if err != nil {
		t.Fatal(err)
	}
	if line := log.String(); !strings.Contains(line, "level=ERROR") || !strings.Contains(line, "second certificate is not valid now") ||
		!strings.Contains(line, c.Configs[0].ECDSA.Cert+": expired ") {
		t.Errorf("log: %q: want an error that names %s", line, c.Configs[0].ECDSA.Cert)
	}
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(t, s) })
	c.AwaitLeader(t, 0)
}

// TestSlowClockDoesNotStopStart: a replica may boot before its clock is set. The clock is no configuration, so New returns no error, and
// the service does not stay down.
func TestSlowClockDoesNotStopStart(t *testing.T) {
	t.Parallel()
	c := supervisortest.New(t, supervisortest.Options{})
	synctest.Test(t, func(t *testing.T) { // the clock begins in 2000
		var log bytes.Buffer
		if _, err := supervisor.New(c.Configs[0], slog.New(slog.NewTextHandler(&log, nil)), supervisor.PatientLease); err != nil {
			t.Fatal(err)
		}
		if line := log.String(); !strings.Contains(line, "second certificate is not valid now") ||
			!strings.Contains(line, c.Configs[0].ECDSA.Cert+": not valid until ") {
			t.Errorf("log: %q: want an error that names %s", line, c.Configs[0].ECDSA.Cert)
		}
	})
}

// python runs the page's Python program with the signatures of OpenSSL and with those of BoringSSL. A server without an
// ECDSA pair shows that the latter exclude Ed25519.
func (g *guide) python(t *testing.T, c *supervisortest.Cluster) {
	t.Helper()
	const from = "Debian's packages python3-grpcio, protobuf-compiler-grpc and libprotobuf-dev"
	requirements.Program(t, from, "grpc_python_plugin")
	requirements.Program(t, from, "protoc")
	path := "PATH=/usr/bin:" + os.Getenv("PATH") // Debian's packages are for this python3 alone
	if out, err := g.shell(t, "python3 -c 'import grpc'", path); err != nil {
		requirements.Missing(t, "Python's grpc: %v: %s: %s", err, out, from)
	}
	g.write("nodes.py", g.blocks["python"][0])
	like := "OPENSSL_CONF=" + g.write("boringssl.cnf", withoutEd25519)
	for _, env := range []string{"OPENSSL_CONF=/dev/null", like} {
		if out, err := g.shell(t, g.blocks["sh"][1], path, env); err != nil || !strings.Contains(out, "n0-0-0 UNKNOWN") {
			t.Errorf("%s: %v\n%s", env, err, out)
		}
	}
	g.write("nodes.py", g.blocks["python"][0]+g.blocks["python"][1])
	g.watches(t, c, path, like)
	address, refused := onlyEd25519(t, c.Configs[0])
	g.write("nodes.py", strings.ReplaceAll(g.blocks["python"][0], g.grpc, address))
	if out, err := g.shell(t, "python3 nodes.py", path, like); err == nil {
		t.Errorf("a client without Ed25519 reads from a server that has nothing else:\n%s", out)
	}
	if t.Failed() {
		return
	}
	if why := refused(); !strings.Contains(why, "signature algorithms") {
		t.Errorf("the server without an ECDSA pair: %s: want no common signature", why)
	}
}

// watches runs nodes.py, which ends with a watch, until it prints a change that a node reports.
func (g *guide) watches(t *testing.T, c *supervisortest.Cluster, env ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-euc", "exec python3 -u nodes.py 2>&1")
	cmd.Dir, cmd.Env = g.dir, append(os.Environ(), env...)
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	done := make(chan bool)
	go func() { // until the change, or the end of the program
		defer close(done)
		for lines := bufio.NewScanner(pipe); lines.Scan(); {
			out.WriteString(lines.Text() + "\n")
			if strings.HasPrefix(lines.Text(), "events {") {
				return
			}
		}
	}()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	states := []fault.State{fault.Sick, fault.Normal}
	for i := 0; ; i++ {
		select {
		case <-tick.C:
			_, b := c.Agents["n0-0-0"].Report(t, fault.HalfHost, false, temperature(states[i%2]))
			c.Agents["n0-0-0"].Send(t, c.Configs[0].Report, b)
			continue
		case <-done:
		}
		break
	}
	cancel()
	_ = cmd.Wait() // killed
	if !strings.Contains(out.String(), "events {") {
		t.Errorf("a watch without a change:\n%s", out.String())
	}
}

// onlyEd25519 listens with the first pair of a replica alone, as replicas of an earlier version do. refused returns the
// error of the first handshake.
func onlyEd25519(t *testing.T, cfg config.Supervisor) (address string, refused func() string) {
	t.Helper()
	conf, err := pki.ServerTLS(cfg.TLS.Cert, cfg.TLS.Key, cfg.TLS.CA, nil)
	if err != nil {
		t.Fatal(err)
	}
	conf.NextProtos = []string{"h2"}
	host, _, err := net.SplitHostPort(cfg.GRPC)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	first := make(chan string, 1)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			how := "accepted"
			if err := tls.Server(conn, conf).HandshakeContext(t.Context()); err != nil {
				how = err.Error()
			}
			_ = conn.Close()
			select {
			case first <- how:
			default:
			}
		}
	}()
	return l.Addr().String(), func() string {
		select {
		case how := <-first:
			return how
		case <-time.After(time.Minute):
			return "no client came"
		}
	}
}

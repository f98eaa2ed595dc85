package process_test

import (
	"crypto/tls"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/executor"
	"github.com/lofamo/lofamo/internal/executor/process/processtest"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
	"github.com/lofamo/lofamo/pkg/response"
)

// TestAttemptOutlivesCertificate: a supervisor's connection ends with its certificate. An attempt in progress goes on, and the
// supervisor, whose certificate was renewed, still receives the outcome.
func TestAttemptOutlivesCertificate(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.Start(t)
	c := config.SupervisorTLS{CA: b.Config.TLS.CA, Cert: filepath.Join(b.Dir, "s1.pem"), Key: filepath.Join(b.Dir, "s1.key")}
	b.supervisorOf(t, "s1")
	renewed, err := os.ReadFile(c.Cert)
	if err != nil {
		t.Fatal(err)
	}
	const life = 30 * time.Second // more than a slow machine needs to connect
	ends := time.Now().Add(life).Truncate(time.Second)
	supervisortest.EndAt(t, b.Dir, c.Cert, ends)
	if err := os.WriteFile(b.hold, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	x, idle := b.dial(t, c), b.connect(t, c)
	result := make(chan executor.Result, 1)
	go func() { result <- processtest.Do(t, x, job(5, "r5-1", 1)) }()
	b.wantActs(t, "r5-1 0 1 5\n")
	if err := os.WriteFile(c.Cert, renewed, 0o600); err != nil {
		t.Fatal(err)
	}
	_ = idle.SetReadDeadline(ends.Add(20 * time.Second))
	_, err = io.Copy(io.Discard, idle)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the connection outlives its certificate of %s", life)
	}
	if early := time.Until(ends); early > 0 {
		t.Errorf("the connection ends %s before its certificate: %v", early, err)
	}
	if err := os.Remove(b.hold); err != nil {
		t.Fatal(err)
	}
	want(t, <-result, response.Succeeded, "exit code 0")
}

// connect opens an HTTP/2 connection to the process that makes no call.
func (b bench) connect(t *testing.T, c config.SupervisorTLS) *tls.Conn {
	t.Helper()
	conf, err := pki.ClientTLS(c.Cert, c.Key, c.CA, pki.AllowRoles(pki.RoleExecutor))
	if err != nil {
		t.Fatal(err)
	}
	conf.ServerName, conf.NextProtos = pki.ExecutorName(processtest.Cluster), []string{"h2"}
	conn, err := tls.Dial("tcp", b.Config.Listen, conf)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if _, err := conn.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")); err != nil {
		t.Fatal(err)
	}
	return conn
}

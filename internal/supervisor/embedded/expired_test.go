package embedded_test

import (
	"crypto/tls"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/testing/supervisortest"
)

// TestConnectionsEndWithCertificate: no connection of a member or client outlives the certificate that opened it, even while it
// is in use.
func TestConnectionsEndWithCertificate(t *testing.T) {
	dir := keys(t)
	cfg := config(t, dir)
	start(t, cfg)
	const life = 4 * time.Second
	supervisortest.EndAt(t, dir, filepath.Join(dir, "supervisor.pem"), time.Now().Add(life))
	conf := clientTLS(t, dir, "supervisor")
	peers := conf.Clone()
	peers.NextProtos = nil
	var wg sync.WaitGroup
	defer wg.Wait()
	for _, l := range []struct {
		url           string
		conf          *tls.Config
		first, repeat string
	}{
		{cfg.PeerURL, peers, "", "GET /version HTTP/1.1\r\nHost: x\r\n\r\n"},
		{cfg.ClientURL, conf, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00", "\x00\x00\x00\x04\x01\x00\x00\x00\x00"},
	} {
		conn, err := tls.Dial("tcp", strings.TrimPrefix(l.url, "https://"), l.conf)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write([]byte(l.first)); err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			defer func() { _ = conn.Close() }()
			buf := make([]byte, 1<<10)
			for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
				_ = conn.SetDeadline(deadline)
				_, err := conn.Write([]byte(l.repeat))
				if err == nil && l.first == "" {
					_, err = conn.Read(buf)
				}
				if err != nil && time.Now().Before(deadline) {
					return
				}
			}
			t.Errorf("%s: the connection outlives its certificate of %s", l.url, life)
		})
	}
}

package embedded_test

import (
	"crypto/tls"
	"errors"
	"os"
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
	const life = 20 * time.Second // more than a slow machine needs to connect
	ends := time.Now().Add(life).Truncate(time.Second)
	supervisortest.EndAt(t, dir, filepath.Join(dir, "supervisor.pem"), ends)
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
		wg.Go(func() {
			if err := useUntilEnd(l.url, l.conf, l.first, l.repeat, ends.Add(20*time.Second)); err == nil {
				t.Errorf("%s: the connection outlives its certificate of %s", l.url, life)
			} else if early := time.Until(ends); early > 0 {
				t.Errorf("%s: the connection ends %s before its certificate: %v", l.url, early, err)
			}
		})
	}
}

// useUntilEnd connects and writes again and again. It returns the error that ends the connection, or nil at the deadline. A slow
// machine connects after the certificate's end, which is an error at once.
func useUntilEnd(url string, conf *tls.Config, first, repeat string, deadline time.Time) error {
	conn, err := tls.Dial("tcp", strings.TrimPrefix(url, "https://"), conf)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(deadline)
	_, err = conn.Write([]byte(first))
	for buf := make([]byte, 1<<10); err == nil; time.Sleep(100 * time.Millisecond) {
		if _, err = conn.Write([]byte(repeat)); err == nil && first == "" {
			_, err = conn.Read(buf)
		}
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	return err
}

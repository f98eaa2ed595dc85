package bounded_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"io"
	"math/big"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/lofamo/lofamo/internal/bounded"
)

// selfSigned returns a certificate with its key.
func selfSigned(t *testing.T, ends time.Time) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: ends}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// TestConnectionEndsWithCertificate: no connection outlives the certificate that opened it, with a subject or without.
func TestConnectionEndsWithCertificate(t *testing.T) {
	for _, subject := range []string{"viewer/vic", ""} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		conf := &tls.Config{MinVersion: tls.VersionTLS13, ClientAuth: tls.RequireAnyClientCert, NextProtos: []string{"h2"},
			Certificates: []tls.Certificate{selfSigned(t, time.Now().Add(time.Hour))}}
		s := grpc.NewServer(grpc.Creds(bounded.Credentials(conf, func(tls.ConnectionState) string { return subject })))
		go func() { _ = s.Serve(bounded.Listen(l, bounded.Options{Limits: bounded.Limits{All: 9, PerSource: 9}})) }()
		t.Cleanup(s.Stop)
		const life = 3 * time.Second // at least one: certificates end at whole seconds
		ends := time.Now().Add(life).Truncate(time.Second)
		if err := connectUntilEnd(t, l.Addr().String(), selfSigned(t, ends), ends.Add(time.Minute)); err != nil && isTimeout(err) {
			t.Errorf("subject %q: open after the certificate's end: %v", subject, err)
		} else if early := time.Until(ends); early > 0 {
			t.Errorf("subject %q: closed %s before the certificate's end: %v", subject, early, err)
		}
	}
}

// connectUntilEnd connects, makes no call, and returns the error that ended the connection. A slow machine connects after the
// certificate's end, which is an error at once.
func connectUntilEnd(t *testing.T, addr string, cert tls.Certificate, deadline time.Time) error {
	t.Helper()
	conf := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}, Certificates: []tls.Certificate{cert}}
	conn, err := tls.Dial("tcp", addr, conf)
	if err != nil {
		return err
	}
	t.Cleanup(func() { _ = conn.Close() })
	if _, err := conn.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")); err != nil {
		return err
	}
	_ = conn.SetReadDeadline(deadline)
	_, err = io.Copy(io.Discard, conn)
	return err
}

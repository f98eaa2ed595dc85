package supervisor_test

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/supervisor"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
)

// A running replica signs with the certificate that replaced its own, and its metrics show the new certificate's
// validity.
func TestRenewedCertificateIsUsedWhileRunning(t *testing.T) {
	t.Parallel()
	c := supervisortest.New(t, supervisortest.Options{})
	cfg := c.Configs[0]
	s, err := supervisor.New(cfg, supervisortest.Logger(t), supervisor.PatientLease)
	if err != nil {
		t.Fatal(err)
	}
	s.RenewEvery(50 * time.Millisecond)
	if err := s.Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(t, s) })
	series := func(what string, at time.Time) string {
		return "lofamo_supervisor_certificate_" + what + "_timestamp_seconds " + strconv.FormatFloat(float64(at.Unix()), 'g', -1, 64) + "\n"
	}
	cert, err := x509.ParseCertificate(s.Cert())
	if err != nil {
		t.Fatal(err)
	}
	metricsSay(t, cfg, series("begins", cert.NotBefore))
	metricsSay(t, cfg, series("expires", cert.NotAfter))

	// The same identity with another validity.
	ca, err := tls.LoadX509KeyPair(filepath.Join(c.Dir, "ca.pem"), filepath.Join(c.Dir, "ca.key"))
	if err != nil {
		t.Fatal(err)
	}
	cert.NotBefore, cert.NotAfter, cert.SerialNumber = cert.NotBefore.Add(time.Minute), cert.NotAfter.Add(-time.Hour), big.NewInt(7)
	der, err := x509.CreateCertificate(rand.Reader, cert, ca.Leaf, cert.PublicKey, ca.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(cfg.TLS.Cert+".new", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(cfg.TLS.Cert+".new", cfg.TLS.Cert); err != nil {
		t.Fatal(err)
	}
	supervisortest.Eventually(t, "it signs with the certificate of now", func() bool { return string(s.Cert()) == string(der) })
	metricsSay(t, cfg, series("begins", cert.NotBefore))
	metricsSay(t, cfg, series("expires", cert.NotAfter))
}

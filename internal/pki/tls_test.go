package pki

import (
	"crypto/tls"
	"net"
	"testing"

	"github.com/lofamo/lofamo/pkg/fault"
)

// handshake runs both sides over a loopback connection and returns their errors.
func handshake(t *testing.T, server, client *tls.Config) (serverErr, clientErr error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	done := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			done <- err
			return
		}
		defer func() { _ = c.Close() }()
		s := tls.Server(c, server)
		if err := s.HandshakeContext(t.Context()); err != nil {
			done <- err
			return
		}
		_, err = s.Write([]byte("x"))
		done <- err
	}()
	c, err := (&tls.Dialer{Config: client}).DialContext(t.Context(), "tcp", l.Addr().String())
	if err == nil {
		// In TLS 1.3 a client learns only by reading that it was refused.
		_, err = c.Read(make([]byte, 1))
		_ = c.Close()
	}
	return <-done, err
}

func TestTLS(t *testing.T) {
	w := newWorld(t, "c1")
	ca := w.file("ca.pem")
	sc, sk := w.issue("s0", SupervisorIdentity("c1", "s0"))
	vc, vk := w.issue("viewer", Identity{"c1", RoleViewer, "v"})
	foreign := newWorld(t, "c1")
	fc, fk := foreign.issue("viewer", Identity{"c1", RoleViewer, "v"})
	must := func(c *tls.Config, err error) *tls.Config {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	server := must(ServerTLS(sc, sk, ca, AllowRoles(RoleViewer, RoleOperator)))
	client := must(ClientTLS(vc, vk, ca, AllowRoles(RoleSupervisor)))
	if s, c := handshake(t, server, client); s != nil || c != nil {
		t.Errorf("good on both sides: %v, %v", s, c)
	}
	noCert := client.Clone()
	noCert.GetClientCertificate = nil
	old := client.Clone()
	old.MinVersion, old.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	elsewhere := client.Clone()
	elsewhere.ServerName = "elsewhere"
	for name, tc := range map[string]struct{ server, client *tls.Config }{
		"a client's role":       {must(ServerTLS(sc, sk, ca, AllowRoles(RoleOperator))), client},
		"a server's role":       {must(ServerTLS(vc, vk, ca, nil)), client},
		"another CA's client":   {server, must(ClientTLS(fc, fk, ca, nil))},
		"another CA's server":   {server, must(ClientTLS(vc, vk, foreign.file("ca.pem"), nil))},
		"no client certificate": {server, noCert},
		"TLS 1.2":               {server, old},
		"another name":          {server, elsewhere},
	} {
		if s, c := handshake(t, tc.server, tc.client); s == nil && c == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestLinkTLS(t *testing.T) {
	w := newWorld(t, "c1")
	ca := w.file("ca.pem")
	link := func(w *world, ca, name string, id Identity, want Identity) *tls.Config {
		t.Helper()
		cert, key := w.issue(name, id)
		own, err := LoadSigner(cert, key)
		if err != nil {
			t.Fatal(err)
		}
		c, err := LinkTLS(own, ca, nil)
		if err != nil {
			t.Fatal(err)
		}
		c.VerifyConnection = func(cs tls.ConnectionState) error { return VerifyPeerIdentity(want)(cs.PeerCertificates[0]) }
		return c
	}
	a, b := NodeIdentity("c1", "n0-0-0", fault.HalfDNP), NodeIdentity("c1", "n1-0-0", fault.HalfDNP)
	if s, c := handshake(t, link(w, ca, "a", a, b), link(w, ca, "b", b, a)); s != nil || c != nil {
		t.Errorf("neighbours: %v, %v", s, c)
	}
	foreign := newWorld(t, "c1")
	for name, tc := range map[string]struct{ server, client *tls.Config }{
		"not the neighbour":     {link(w, ca, "a", a, b), link(w, ca, "x", NodeIdentity("c1", "n2-0-0", fault.HalfDNP), a)},
		"the neighbour's host":  {link(w, ca, "a", a, b), link(w, ca, "x", NodeIdentity("c1", "n1-0-0", fault.HalfHost), a)},
		"not the dialled one":   {link(w, ca, "a", a, b), link(w, ca, "b", b, NodeIdentity("c1", "n2-0-0", fault.HalfDNP))},
		"a forged neighbour":    {link(w, ca, "a", a, b), link(foreign, ca, "b", b, a)},
		"a forged dialled one":  {link(foreign, ca, "a", a, b), link(w, ca, "b", b, a)},
		"a supervisor, allowed": {link(w, ca, "a", a, SupervisorIdentity("c1", "s0")), link(w, ca, "s", SupervisorIdentity("c1", "s0"), a)},
	} {
		if s, c := handshake(t, tc.server, tc.client); s == nil && c == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	noCert := link(w, ca, "b", b, a)
	noCert.GetClientCertificate = nil
	if s, _ := handshake(t, link(w, ca, "a", a, b), noCert); s == nil {
		t.Error("no client certificate: accepted")
	}
}

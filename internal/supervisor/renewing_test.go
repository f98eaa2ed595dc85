package supervisor_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/types/known/timestamppb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/supervisor"
	"github.com/lofamo/lofamo/internal/testing/supervisortest"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// due makes a certificate of a half that is due for renewal, and returns its signer.
func due(t *testing.T, c *supervisortest.Cluster, id pki.Identity) *pki.Signer {
	t.Helper()
	i, err := pki.LoadIssuer(filepath.Join(c.Dir, "issuer.pem"), filepath.Join(c.Dir, "issuer.key"), supervisortest.Name)
	if err != nil {
		t.Fatal(err)
	}
	pub, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	at := time.Now().Add(-6 * time.Hour)
	der, err := i.Renew(at, pki.Presented{Identity: id, NotBefore: at.Add(-24 * time.Hour), Descends: at.Add(-24 * time.Hour)}, pub,
		8*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	base := filepath.Join(t.TempDir(), "due")
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err == nil {
		err = pki.WritePair(base+".pem", base+".key", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
			pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw}))
	}
	if err != nil {
		t.Fatal(err)
	}
	s, err := pki.LoadSigner(base+".pem", base+".key")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// requestOf makes a request for a new key.
func requestOf(t *testing.T, id pki.Identity, made time.Time) (*lofamov1.RenewRequest, ed25519.PublicKey) {
	t.Helper()
	pub, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	o, _ := id.Origin()
	return &lofamov1.RenewRequest{Node: string(o.Node), Half: lofamov1.Half(o.Half), Key: pub, Proof: pki.ProveKey(key, id),
		MadeNs: made.UnixNano()}, pub
}

func sealed(t *testing.T, m *lofamov1.RenewRequest, s *pki.Signer) []byte {
	t.Helper()
	b, err := servicenet.Seal(&lofamov1.Message{Body: &lofamov1.Message_RenewRequest{RenewRequest: m}}, s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// sample returns the value of a metric, with its labels as Prometheus writes them.
func sample(t *testing.T, addr, name string) float64 {
	t.Helper()
	found := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(name) + ` (\S+)$`).FindStringSubmatch(scrape(t, addr))
	if found == nil {
		return 0
	}
	v, err := strconv.ParseFloat(found[1], 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// TestReplicaRenewsOnlyForSigner: a replica issues for the identity that signed, and tells halves why it refuses;
// another node's identity, a revoked one and a replay get nothing.
func TestReplicaRenewsOnlyForSigner(t *testing.T) {
	t.Parallel()
	c := supervisortest.New(t, supervisortest.Options{Renewed: 8 * time.Hour, Spares: 1})
	cfg := c.Configs[0]
	start(t, cfg)
	c.AwaitLeader(t)
	const node = "n0-0-0"
	a := c.Agents[node]
	host, dnp := pki.NodeIdentity(supervisortest.Name, node, fault.HalfHost), pki.NodeIdentity(supervisortest.Name, node, fault.HalfDNP)
	verify, err := pki.LoadVerifier(filepath.Join(c.Dir, "ca.pem"), supervisortest.Name)
	if err != nil {
		t.Fatal(err)
	}
	counts := func(metric string, n float64) {
		t.Helper()
		for end := time.Now().Add(supervisortest.Wait); sample(t, cfg.HTTP, metric) < n; {
			if time.Now().After(end) {
				t.Fatalf("%s is %v: want %v", metric, sample(t, cfg.HTTP, metric), n)
			}
		}
	}
	answer := func(from *supervisortest.Agent) *lofamov1.RenewReply {
		t.Helper()
		select {
		case r := <-from.Renewals():
			return r
		case <-time.After(supervisortest.Wait):
			t.Fatal("no answer")
			return nil
		}
	}
	issued := func(from *supervisortest.Agent, id pki.Identity, key ed25519.PublicKey) []byte {
		t.Helper()
		r := answer(from)
		got, err := verify.Check(r.GetCertificate())
		if err != nil || got != id {
			t.Fatalf("answer %v: %s, %v: want a certificate of %s", r, got, err, id)
		}
		p, err := pki.ReadPresented(r.GetCertificate())
		if left := time.Until(p.NotAfter); err != nil || !p.Key.Equal(key) || left > 8*time.Hour {
			t.Errorf("%+v, %v: want the requested key and at most 8 h", p, err)
		}
		return r.GetCertificate()
	}
	hostNow, dnpNow, now := due(t, c, host), due(t, c, dnp), time.Now()
	m, key := requestOf(t, host, now)
	first := sealed(t, m, hostNow)
	a.Send(t, cfg.Report, first)
	cert := issued(a, host, key)
	m, key = requestOf(t, dnp, now) // by its host half
	a.Send(t, cfg.Report, sealed(t, m, dnpNow))
	issued(a, dnp, key)

	a.Send(t, cfg.Report, first) // the answer was lost
	if r := answer(a); string(r.GetCertificate()) != string(cert) {
		t.Errorf("repeated: %v: want the same certificate", r)
	}
	m, _ = requestOf(t, host, now.Add(time.Second))
	a.Send(t, cfg.Report, sealed(t, m, hostNow))
	if r := answer(a); !strings.Contains(r.GetError(), "too soon") {
		t.Errorf("another key: %v: want it refused", r)
	}

	// In the name of another node, of another half, and with another half's proof.
	for _, other := range []pki.Identity{pki.NodeIdentity(supervisortest.Name, "n1-0-0", fault.HalfHost), dnp} {
		m, _ = requestOf(t, other, now)
		before := sample(t, cfg.HTTP, `lofamo_refused_total{class="origin"}`)
		a.Send(t, cfg.Report, sealed(t, m, hostNow))
		counts(`lofamo_refused_total{class="origin"}`, before+1)
		o, _ := host.Origin()
		m.Node, m.Half, m.MadeNs = string(o.Node), lofamov1.Half(o.Half), now.Add(2*time.Second).UnixNano()
		a.Send(t, cfg.Report, sealed(t, m, hostNow))
		if r := answer(a); !strings.Contains(r.GetError(), "does not prove") {
			t.Errorf("the proof of %s: %v: want it refused", other, r)
		}
	}
	ghost := pki.NodeIdentity(supervisortest.Name, "ghost", fault.HalfHost)
	m, _ = requestOf(t, ghost, now)
	a.Send(t, cfg.Report, sealed(t, m, due(t, c, ghost)))
	if r := answer(a); !strings.Contains(r.GetError(), "no node or spare") {
		t.Errorf("a node that is not in the topology: %v: want it refused", r)
	}
	spare := pki.NodeIdentity(supervisortest.Name, "x1", fault.HalfDNP)
	m, key = requestOf(t, spare, now)
	c.Agents["x1"].Send(t, cfg.Report, sealed(t, m, due(t, c, spare)))
	issued(c.Agents["x1"], spare, key)

	// After its revocation the half gets no further certificate.
	was := sample(t, cfg.HTTP, `lofamo_renewals_total{result="issued"}`)
	revoke(t, c, host, dnp)
	m, _ = requestOf(t, host, time.Now())
	a.Send(t, cfg.Report, sealed(t, m, hostNow))
	counts(`lofamo_refused_total{class="revoked"}`, 1)
	if got := sample(t, cfg.HTTP, `lofamo_renewals_total{result="issued"}`); got != was || was != 3 {
		t.Errorf("%v certificates issued: want 3, none of them after the revocation (%v)", got, was)
	}
	if len(a.Renewals()) > 0 {
		t.Errorf("answered: %v", <-a.Renewals())
	}
}

// revoke has an operator revoke identities.
func revoke(t *testing.T, c *supervisortest.Cluster, ids ...pki.Identity) {
	t.Helper()
	op, err := pki.LoadSigner(filepath.Join(c.Dir, "operator.pem"), filepath.Join(c.Dir, "operator.key"))
	if err != nil {
		t.Fatal(err)
	}
	l := &lofamov1.DenyList{Cluster: supervisortest.Name, Version: 1, Issued: timestamppb.Now()}
	before := timestamppb.New(pki.CutOff(time.Now()))
	for _, id := range ids {
		l.Denials = append(l.Denials, &lofamov1.Denial{
			Role: string(id.Role), Name: id.Name, Before: before, Revoked: timestamppb.Now(), By: "operator/someone", Reason: "test",
		})
	}
	signed, err := pki.SignDenyList(l, op)
	if err != nil {
		t.Fatal(err)
	}
	certificates := lofamov1.NewCertificatesClient(c.Conn(t, pki.RoleOperator, c.Configs[0].GRPC))
	if _, err := certificates.PutDenyList(t.Context(), &lofamov1.PutDenyListRequest{Signed: signed}); err != nil {
		t.Fatal(err)
	}
}

// stolen has the issuer's key sign any identity, with the names and uses of a supervisor.
func stolen(t *testing.T, c *supervisortest.Cluster, id pki.Identity) tls.Certificate {
	t.Helper()
	issuer, err := tls.LoadX509KeyPair(filepath.Join(c.Dir, "issuer.pem"), filepath.Join(c.Dir, "issuer.key"))
	if err != nil {
		t.Fatal(err)
	}
	pub, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(id.String())
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(7), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, URIs: []*url.URL{u},
		DNSNames: []string{pki.SupervisorName(supervisortest.Name), "localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, issuer.Leaf, pub, issuer.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// TestStolenIssuerKeyOpensNoListener: a real replica's API, and its etcd's ports for clients and peers, refuse every
// role that a stolen issuer key signs.
func TestStolenIssuerKeyOpensNoListener(t *testing.T) {
	t.Parallel()
	c := supervisortest.New(t, supervisortest.Options{Renewed: time.Hour})
	cfg := c.Configs[0]
	start(t, cfg)
	c.AwaitLeader(t)
	ca, err := os.ReadFile(filepath.Join(c.Dir, "ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	own, err := tls.LoadX509KeyPair(cfg.TLS.Cert, cfg.TLS.Key)
	if err != nil {
		t.Fatal(err)
	}
	// accepts reports whether a TLS listener lets a client speak: it waits for the client's first bytes, or closes
	// the connection with an alert.
	accepts := func(addr string, cert tls.Certificate) bool {
		t.Helper()
		conn, err := (&tls.Dialer{Config: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{cert},
			ServerName: pki.SupervisorName(supervisortest.Name), NextProtos: []string{"h2", "http/1.1"}, MinVersion: tls.VersionTLS12}}).
			DialContext(t.Context(), "tcp", addr)
		if err != nil {
			return false
		}
		defer conn.Close()
		if err := conn.SetDeadline(time.Now().Add(supervisortest.Wait)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"); err != nil {
			return false
		}
		_, err = conn.Read(make([]byte, 1))
		return err == nil
	}
	ports := map[string]string{"API": cfg.GRPC, "etcd's clients": strings.TrimPrefix(cfg.Etcd.ClientURL, "https://"),
		"etcd's peers": strings.TrimPrefix(cfg.Etcd.PeerURL, "https://")}
	for what, addr := range ports {
		if !accepts(addr, own) {
			t.Errorf("%s: refuses a supervisor of the authority", what)
		}
		for _, role := range pki.Roles() {
			id := pki.Identity{Cluster: supervisortest.Name, Role: role, Name: "s1"}
			if role == pki.RoleNode {
				id = pki.NodeIdentity(supervisortest.Name, "n0-0-0", fault.HalfHost)
			}
			if accepts(addr, stolen(t, c, id)) {
				t.Errorf("%s: accepts a %s of the issuer", what, role)
			}
		}
	}
	forged := stolen(t, c, pki.Identity{Cluster: supervisortest.Name, Role: pki.RoleOperator, Name: "thief"})
	conn, err := grpc.NewClient(cfg.GRPC, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: roots,
		Certificates: []tls.Certificate{forged}, MinVersion: tls.VersionTLS13, ServerName: pki.SupervisorName(supervisortest.Name)})))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), supervisortest.Wait)
	defer cancel()
	if _, err := lofamov1.NewCertificatesClient(conn).ListCertificates(ctx, &lofamov1.ListCertificatesRequest{}); err == nil {
		t.Error("an operator of the issuer lists certificates")
	}
}

// TestIssuerMustBeTrusted: a replica whose issuer is not in its own ca.pem, or not its cluster's, does not start.
func TestIssuerMustBeTrusted(t *testing.T) {
	t.Parallel()
	c := supervisortest.New(t, supervisortest.Options{Renewed: time.Hour})
	for what, cluster := range map[string]string{"is not among the certificates": supervisortest.Name, "want that of an issuer": "other"} {
		i, err := pki.NewIssuer(cluster)
		if err != nil {
			t.Fatal(err)
		}
		cfg := c.Configs[0]
		cfg.Renewal.Cert, cfg.Renewal.Key = filepath.Join(t.TempDir(), "i.pem"), filepath.Join(t.TempDir(), "i.key")
		if err := i.Save(cfg.Renewal.Cert, cfg.Renewal.Key); err != nil {
			t.Fatal(err)
		}
		if _, err := supervisor.New(cfg, supervisortest.Logger(t)); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%v: want one that has %q", err, what)
		}
	}
}

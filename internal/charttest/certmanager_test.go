package charttest

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"maps"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/inventory"
	"github.com/lofamo/lofamo/internal/pki"
)

// issuer is cert-manager's Issuer of kind CA with the cluster's authority: it makes of a Certificate's spec what that does. No subject, so that the names are critical; valid from
// now on, not from before; the key as PKCS #8.
type issuer struct {
	t    *testing.T
	cert *x509.Certificate
	key  ed25519.PrivateKey
}

func newIssuer(t *testing.T, hall string) *issuer {
	t.Helper()
	read := func(name string) []byte {
		b, err := os.ReadFile(filepath.Join(hall, name))
		if err != nil {
			t.Fatal(err)
		}
		block, _ := pem.Decode(b)
		return block.Bytes
	}
	cert, err := x509.ParseCertificate(read("ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	key, err := x509.ParsePKCS8PrivateKey(read("ca.key"))
	if err != nil {
		t.Fatal(err)
	}
	return &issuer{t, cert, key.(ed25519.PrivateKey)}
}

var usages = map[string]any{"digital signature": x509.KeyUsageDigitalSignature, "client auth": x509.ExtKeyUsageClientAuth, "server auth": x509.ExtKeyUsageServerAuth}

// issue returns the Secret of a Certificate.
func (i *issuer) issue(spec object) map[string][]byte {
	i.t.Helper()
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 159))
	if err != nil {
		i.t.Fatal(err)
	}
	duration, err := time.ParseDuration(spec.text("duration"))
	if err != nil {
		i.t.Fatal(err)
	}
	now := time.Now().Truncate(time.Second)
	template := &x509.Certificate{SerialNumber: serial, NotBefore: now, NotAfter: now.Add(duration), BasicConstraintsValid: true, DNSNames: words(spec.at("dnsNames"))}
	for _, u := range words(spec.at("usages")) {
		switch u := usages[u].(type) {
		case x509.KeyUsage:
			template.KeyUsage |= u
		case x509.ExtKeyUsage:
			template.ExtKeyUsage = append(template.ExtKeyUsage, u)
		default:
			i.t.Fatalf("a usage that this test does not know: %v", spec.at("usages"))
		}
	}
	for _, ip := range words(spec.at("ipAddresses")) {
		template.IPAddresses = append(template.IPAddresses, net.ParseIP(ip))
	}
	for _, u := range words(spec.at("uris")) {
		uri, err := url.Parse(u)
		if err != nil {
			i.t.Fatal(err)
		}
		template.URIs = append(template.URIs, uri)
	}
	var public, private any
	switch spec.text("privateKey", "algorithm") {
	case "Ed25519":
		public, private, err = ed25519.GenerateKey(rand.Reader)
	case "ECDSA":
		var key *ecdsa.PrivateKey
		if key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err == nil {
			public, private = &key.PublicKey, key
		}
	default:
		i.t.Fatalf("a key that this test does not know: %v", spec.at("privateKey"))
	}
	if err != nil {
		i.t.Fatal(err)
	}
	if spec.text("privateKey", "encoding") != "PKCS8" {
		i.t.Fatalf("encoding: %v", spec.at("privateKey"))
	}
	der, err := x509.CreateCertificate(rand.Reader, template, i.cert, public, i.key)
	if err != nil {
		i.t.Fatal(err)
	}
	key, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		i.t.Fatal(err)
	}
	encode := func(kind string, der []byte) []byte { return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}) }
	ca := encode("CERTIFICATE", i.cert.Raw)
	return map[string][]byte{"tls.crt": append(encode("CERTIFICATE", der), ca...), "tls.key": encode("PRIVATE KEY", key), "ca.crt": ca} // the chain behind it, as some issuers have it
}

// project lays files out as a kubelet does: in a directory of their own, with a link that is replaced by one rename.
func project(t *testing.T, volume, version string, files map[string][]byte) {
	t.Helper()
	for name, b := range files {
		path := filepath.Join(volume, version, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, b, 0o400); err != nil {
			t.Fatal(err)
		}
		top, _, _ := strings.Cut(name, "/")
		if err := os.Symlink(filepath.Join("..data", top), filepath.Join(volume, top)); err != nil && !os.IsExist(err) {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(version, filepath.Join(volume, "..data_tmp")); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(volume, "..data_tmp"), filepath.Join(volume, "..data")); err != nil {
		t.Fatal(err)
	}
}

// shown is the certificate that a server shows a client, after both have accepted one another.
func shown(t *testing.T, server, client *tls.Config) *x509.Certificate {
	t.Helper()
	l, err := tls.Listen("tcp", "127.0.0.1:0", server)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	done := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			defer func() { _ = c.Close() }()
			_, err = c.Write([]byte("x")) // after the handshake
		}
		done <- err
	}()
	c, err := (&tls.Dialer{Config: client}).DialContext(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if _, err := c.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	return c.(*tls.Conn).ConnectionState().PeerCertificates[0]
}

// What cert-manager makes of the chart's Certificates are supervisors' certificates; and what it renews is brought to the replica by the container beside it, and shown and signed with by what runs.
func TestCertManager(t *testing.T) {
	t.Parallel()
	file := filepath.Join(root, "deploy", "examples", "inventory.yaml")
	inv, err := inventory.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	hall := filepath.Join(t.TempDir(), "hall")
	if err := inventory.Open(hall).Init(inv); err != nil {
		t.Fatal(err)
	}
	all := render(t, given(t, matrix["managed"]...)...)
	set := find(t, all, "StatefulSet", "lofamo-supervisor")
	pod := object(set.at("spec", "template", "spec").(map[string]any))
	is := newIssuer(t, hall)
	secrets := map[string]map[string][]byte{}
	specs := map[string]object{}
	for _, o := range all {
		if o.text("kind") == "Certificate" {
			specs[o.text("spec", "secretName")] = object(o.at("spec").(map[string]any))
			secrets[o.text("spec", "secretName")] = is.issue(specs[o.text("spec", "secretName")])
		}
	}
	if len(secrets) != len(inv.Supervisors) {
		t.Fatalf("%d Certificates for %d supervisors", len(secrets), len(inv.Supervisors))
	}
	gossip, err := os.ReadFile(filepath.Join(hall, "gossip.key"))
	if err != nil {
		t.Fatal(err)
	}
	secrets["lofamo-gossip"] = map[string][]byte{"gossip.key": gossip}
	// files are those of the volume with all replicas' keys.
	files := func() map[string][]byte {
		out := map[string][]byte{}
		volumes := list(pod, "volumes")
		keys := volumes[slices.IndexFunc(volumes, func(v object) bool { return v.text("name") == "keys" })]
		for _, s := range list(keys, "projected", "sources") {
			for _, item := range list(s, "secret", "items") {
				b, ok := secrets[s.text("secret", "name")][item.text("key")]
				if !ok {
					t.Fatalf("Secret %s has no %s", s.text("secret", "name"), item.text("key"))
				}
				out[item.text("path")] = b
			}
		}
		return out
	}
	volume, etc := t.TempDir(), map[string]string{}
	project(t, volume, "..2026_01", files())
	for i, s := range inv.Supervisors {
		etc[s.ID] = t.TempDir()
		if _, err := inv.PlaceSupervisor(i, inventory.Placement{Keys: volume, Etc: etc[s.ID]}); err != nil {
			t.Fatal(err)
		}
	}
	in := func(id, name string) string { return filepath.Join(etc[id], "pki", name) }
	server, err := pki.ServerTLS(in("s1", "supervisor.pem"), in("s1", "supervisor.key"), in("s1", "ca.pem"), pki.AllowRoles(pki.RoleSupervisor))
	if err != nil {
		t.Fatal(err)
	}
	client, err := pki.ClientTLS(in("s2", "supervisor.pem"), in("s2", "supervisor.key"), in("s2", "ca.pem"), pki.AllowRoles(pki.RoleSupervisor))
	if err != nil {
		t.Fatal(err)
	}
	var before *x509.Certificate
	for _, name := range []string{inv.Supervisors[0].Address, "localhost", pki.SupervisorName(inv.Cluster), "lofamo-api.lofamo.svc"} {
		named := client.Clone()
		named.ServerName = name
		before = shown(t, server, named)
	}
	signer, err := pki.LoadSigner(in("s1", "supervisor.pem"), in("s1", "supervisor.key"))
	if err != nil {
		t.Fatal(err)
	}
	verifier, err := pki.LoadVerifier(in("s2", "ca.pem"), inv.Cluster)
	if err != nil {
		t.Fatal(err)
	}
	signs := func() {
		t.Helper()
		if id, err := verifier.Verify(signer.Cert(), []byte("x"), signer.Sign([]byte("x"))); err != nil || id != pki.SupervisorIdentity(inv.Cluster, "s1") {
			t.Errorf("signed by %v, %v", id, err)
		}
	}
	signs()

	if renewed, err := inv.Renew(0, inventory.Placement{Keys: volume, Etc: etc["s1"]}); renewed || err != nil {
		t.Errorf("nothing was renewed: %v, %v", renewed, err)
	}
	name := "lofamo-supervisor-s1"
	secrets[name] = is.issue(specs[name])
	project(t, volume, "..2026_02", files())
	if renewed, err := inv.Renew(0, inventory.Placement{Keys: volume, Etc: etc["s1"]}); !renewed || err != nil {
		t.Errorf("the Secret was renewed: %v, %v", renewed, err)
	}
	client.ServerName = "localhost"
	if after := shown(t, server, client); after.SerialNumber.Cmp(before.SerialNumber) == 0 {
		t.Error("what runs shows the certificate of before")
	}
	if renewed, err := signer.Renew(); !renewed || err != nil {
		t.Errorf("the signer: %v, %v", renewed, err)
	}
	signs()
	for i, tc := range []struct {
		secret map[string][]byte
		want   string
	}{
		{is.issue(specs["lofamo-supervisor-s2"]), "want lofamo://hall7/supervisor/s1"},
		{map[string][]byte{"tls.crt": is.issue(specs[name])["tls.crt"], "tls.key": secrets[name]["tls.key"], "ca.crt": secrets[name]["ca.crt"]}, "does not belong to certificate"},
		{is.issue(with(specs[name], "ECDSA")), "want an Ed25519 key"},
	} {
		secrets[name] = tc.secret
		project(t, volume, "..2026_1"+string(rune('0'+i)), files())
		if renewed, err := inv.Renew(0, inventory.Placement{Keys: volume, Etc: etc["s1"]}); renewed || err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%v, %v: want an error with %q", renewed, err, tc.want)
		}
	}
	shown(t, server, client)
	signs()
}

// with is a Certificate's spec with a key of another kind.
func with(spec object, algorithm string) object {
	out := object{}
	maps.Copy(out, spec)
	out["privateKey"] = map[string]any{"algorithm": algorithm, "encoding": "PKCS8"}
	return out
}

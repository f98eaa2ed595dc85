package charttest

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"maps"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/ctl"
	"github.com/lofamo/lofamo/internal/ctl/command"
	"github.com/lofamo/lofamo/internal/inventory"
	"github.com/lofamo/lofamo/internal/pki"
)

// issuer imitates cert-manager's Issuer of kind CA with the cluster's authority: no subject, so that the names are
// critical; valid from now, not earlier; the key as PKCS #8.
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

var usages = map[string]any{"digital signature": x509.KeyUsageDigitalSignature, "client auth": x509.ExtKeyUsageClientAuth,
	"server auth": x509.ExtKeyUsageServerAuth}

// issue returns the Secret for a Certificate.
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
	template := &x509.Certificate{SerialNumber: serial, NotBefore: now, NotAfter: now.Add(duration), BasicConstraintsValid: true,
		DNSNames: words(spec.at("dnsNames"))}
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
	return map[string][]byte{"tls.crt": append(encode("CERTIFICATE", der), ca...), "tls.key": encode("PRIVATE KEY", key),
		"ca.crt": ca} // followed by the chain, as with some issuers
}

// project writes files as a kubelet does: in a separate directory, with a link that a rename replaces.
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

// shown returns the certificate that a server presents to a client after mutual authentication.
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

// issued holds the projected volume with the keys of all replicas from cert-manager, and the etc directory of each
// after its init step.
type issued struct {
	t       *testing.T
	inv     inventory.Inventory
	pod     object
	is      *issuer
	specs   map[string]object            // specs of the Certificates, by the name of their Secret
	secrets map[string]map[string][]byte // by name
	volume  string
	etc     map[string]string // by replica
}

// s1 is the Secret of the replica under test.
const s1 = "lofamo-supervisor-s1"

func newIssued(t *testing.T) *issued {
	t.Helper()
	inv, err := inventory.Load(filepath.Join(root, "deploy", "examples", "inventory.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	hall := filepath.Join(t.TempDir(), "hall")
	if err := inventory.Open(hall).Init(inv); err != nil {
		t.Fatal(err)
	}
	all := render(t, given(t, matrix["managed"]...)...)
	pod := object(find(t, all, "StatefulSet", "lofamo-supervisor").at("spec", "template", "spec").(map[string]any))
	i := &issued{t: t, inv: inv, pod: pod, is: newIssuer(t, hall), specs: map[string]object{}, secrets: map[string]map[string][]byte{},
		volume: t.TempDir(), etc: map[string]string{}}
	for _, o := range all {
		if o.text("kind") == "Certificate" {
			name := o.text("spec", "secretName")
			i.specs[name] = object(o.at("spec").(map[string]any))
			i.secrets[name] = i.is.issue(i.specs[name])
		}
	}
	if len(i.secrets) != len(inv.Supervisors) {
		t.Fatalf("%d Certificates for %d supervisors", len(i.secrets), len(inv.Supervisors))
	}
	gossip, err := os.ReadFile(filepath.Join(hall, "gossip.key"))
	if err != nil {
		t.Fatal(err)
	}
	i.secrets["lofamo-gossip"] = map[string][]byte{"gossip.key": gossip}
	i.project("..2026_01")
	for n, s := range inv.Supervisors {
		i.etc[s.ID] = t.TempDir()
		if _, err := inv.PlaceSupervisor(n, inventory.Placement{Keys: i.volume, Etc: i.etc[s.ID]}); err != nil {
			t.Fatal(err)
		}
	}
	return i
}

// project updates the volume from the current Secrets.
func (i *issued) project(version string) {
	i.t.Helper()
	out := map[string][]byte{}
	volumes := list(i.pod, "volumes")
	keys := volumes[slices.IndexFunc(volumes, func(v object) bool { return v.text("name") == "keys" })]
	for _, s := range list(keys, "projected", "sources") {
		for _, item := range list(s, "secret", "items") {
			b, ok := i.secrets[s.text("secret", "name")][item.text("key")]
			if !ok {
				i.t.Fatalf("Secret %s has no %s", s.text("secret", "name"), item.text("key"))
			}
			out[item.text("path")] = b
		}
	}
	project(i.t, i.volume, version, out)
}

func (i *issued) in(id, name string) string { return filepath.Join(i.etc[id], "pki", name) }

// renew does one run of the keys container of s1.
func (i *issued) renew() (bool, error) {
	return i.inv.Renew(0, inventory.Placement{Keys: i.volume, Etc: i.etc["s1"]})
}

// TestCertManager: the certificates that cert-manager issues for the chart's Certificates are valid for supervisors,
// and running processes present renewed ones and sign with them.
func TestCertManager(t *testing.T) {
	t.Parallel()
	i := newIssued(t)
	server, err := pki.ServerTLS(i.in("s1", "supervisor.pem"), i.in("s1", "supervisor.key"), i.in("s1", "ca.pem"),
		pki.AllowRoles(pki.RoleSupervisor))
	if err != nil {
		t.Fatal(err)
	}
	client, err := pki.ClientTLS(i.in("s2", "supervisor.pem"), i.in("s2", "supervisor.key"), i.in("s2", "ca.pem"),
		pki.AllowRoles(pki.RoleSupervisor))
	if err != nil {
		t.Fatal(err)
	}
	var before *x509.Certificate
	for _, name := range []string{i.inv.Supervisors[0].Address, "localhost", pki.SupervisorName(i.inv.Cluster), "lofamo-api.lofamo.svc"} {
		named := client.Clone()
		named.ServerName = name
		before = shown(t, server, named)
	}
	signer, err := pki.LoadSigner(i.in("s1", "supervisor.pem"), i.in("s1", "supervisor.key"))
	if err != nil {
		t.Fatal(err)
	}
	verifier, err := pki.LoadVerifier(i.in("s2", "ca.pem"), i.inv.Cluster)
	if err != nil {
		t.Fatal(err)
	}
	signs := func() {
		t.Helper()
		if id, err := verifier.Verify(signer.Cert(), []byte("x"), signer.Sign([]byte("x"))); err != nil ||
			id != pki.SupervisorIdentity(i.inv.Cluster, "s1") {
			t.Errorf("signed by %v, %v", id, err)
		}
	}
	signs()

	if renewed, err := i.renew(); renewed || err != nil {
		t.Errorf("nothing was renewed: %v, %v", renewed, err)
	}
	i.secrets[s1] = i.is.issue(i.specs[s1])
	i.project("..2026_02")
	if renewed, err := i.renew(); !renewed || err != nil {
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
	i.refuses()
	shown(t, server, client)
	signs()
}

// refuses checks that the renewal rejects pairs that are not s1's or are invalid, and replaces nothing.
func (i *issued) refuses() {
	i.t.Helper()
	hall := filepath.Join(i.t.TempDir(), "other")
	if err := inventory.Open(hall).Init(i.inv); err != nil {
		i.t.Fatal(err)
	}
	good := i.secrets[s1]
	for n, tc := range []struct {
		secret map[string][]byte
		want   string
	}{
		{i.is.issue(i.specs["lofamo-supervisor-s2"]), "want lofamo://hall7/supervisor/s1"},
		{map[string][]byte{"tls.crt": i.is.issue(i.specs[s1])["tls.crt"], "tls.key": good["tls.key"], "ca.crt": good["ca.crt"]},
			"does not belong to certificate"},
		{i.is.issue(with(i.specs[s1], "ECDSA")), "want an Ed25519 key"},
		{newIssuer(i.t, hall).issue(i.specs[s1]), "authority"}, // brings its own ca.crt
	} {
		was := [2][]byte{i.read("supervisor.pem"), i.read("supervisor.key")}
		i.secrets[s1] = tc.secret
		i.project(fmt.Sprintf("..2026_1%d", n))
		if renewed, err := i.renew(); renewed || err == nil || !strings.Contains(err.Error(), tc.want) {
			i.t.Errorf("%v, %v: want an error with %q", renewed, err, tc.want)
		}
		if now := [2][]byte{i.read("supervisor.pem"), i.read("supervisor.key")}; !reflect.DeepEqual(now, was) {
			i.t.Errorf("want an error with %q: and the pair of before", tc.want)
		}
	}
}

// read returns a file of s1's keys.
func (i *issued) read(name string) []byte {
	i.t.Helper()
	b, err := os.ReadFile(i.in("s1", name))
	if err != nil {
		i.t.Fatal(err)
	}
	return b
}

// TestKeysContainer: the keys container of a replica, with its arguments and mounts, copies renewed keys, logs each
// refusal once, and ends with success.
func TestKeysContainer(t *testing.T) {
	t.Parallel()
	i := newIssued(t)
	mounts := map[string]string{"etc": i.etc["s1"], "keys": i.volume, "inventory": filepath.Join(root, "deploy", "examples")}
	containers := list(i.pod, "containers")
	c := containers[slices.IndexFunc(containers, func(c object) bool { return c.text("name") == "keys" })]
	if env := list(c, "env"); len(env) != 1 || env[0].text("name") != "POD_INDEX" {
		t.Fatalf("its environment: %v", env)
	}
	args := words(c.at("args"))
	for n, a := range args {
		args[n] = strings.ReplaceAll(a, "$(POD_INDEX)", "0")
		if a == "1m" {
			args[n] = "1s"
		}
		for _, m := range list(c, "volumeMounts") {
			if below, ok := strings.CutPrefix(a, m.text("mountPath")); ok && (below == "" || below[0] == '/') {
				args[n] = mounts[m.text("name")] + below
			}
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	said, out := io.Pipe()
	defer func() { _ = said.Close() }()
	ended := make(chan int, 1)
	go func() {
		ended <- ctl.Run(ctx, args, command.Env{Stdout: out, Stderr: out, Getenv: func(string) string { return "" }})
		_ = out.Close()
	}()
	lines := bufio.NewScanner(said)
	hears := func(want string) {
		t.Helper()
		if !lines.Scan() || !strings.Contains(lines.Text(), want) {
			t.Fatalf("it says %q, %v: want %q", lines.Text(), lines.Err(), want)
		}
	}
	good := i.is.issue(i.specs[s1])
	i.secrets[s1] = i.is.issue(i.specs["lofamo-supervisor-s2"])
	i.project("..2026_02")
	hears("want lofamo://hall7/supervisor/s1")
	i.secrets[s1] = good
	i.project("..2026_03")
	hears("the certificate of s1 was renewed")
	if !bytes.Equal(i.read("supervisor.pem"), good["tls.crt"]) || !bytes.Equal(i.read("supervisor.key"), good["tls.key"]) {
		t.Error("etc has not what the Secret has")
	}
	cancel()
	if lines.Scan() {
		t.Errorf("it says %q at its end", lines.Text())
	}
	if code := <-ended; code != 0 {
		t.Errorf("it ends with %d", code)
	}
}

// with returns a Certificate's spec with another key algorithm.
func with(spec object, algorithm string) object {
	out := object{}
	maps.Copy(out, spec)
	out["privateKey"] = map[string]any{"algorithm": algorithm, "encoding": "PKCS8"}
	return out
}

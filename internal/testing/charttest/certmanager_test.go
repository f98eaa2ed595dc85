package charttest

import (
	"bufio"
	"bytes"
	"context"
	"crypto"
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
	key  crypto.Signer
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
	return &issuer{t, cert, key.(crypto.Signer)}
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

// issued holds the directories of each replica with keys from cert-manager, after the init steps.
type issued struct {
	t       *testing.T
	inv     inventory.Inventory
	pod     object            // spec of the replicas' pods
	keys    map[string]object // specs of the pods that bring keys, by replica, as are the following directories
	secret  map[string]string // projected volume of such a pod
	data    map[string]string // the replica's volume
	etc     map[string]string
	is      *issuer
	specs   map[string]object            // specs of the Certificates, by the name of their Secret
	secrets map[string]map[string][]byte // by name
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
		keys: map[string]object{}, secret: map[string]string{}, data: map[string]string{}, etc: map[string]string{}}
	for _, o := range all {
		if o.text("kind") == "Certificate" {
			name := o.text("spec", "secretName")
			i.specs[name] = object(o.at("spec").(map[string]any))
			i.secrets[name] = i.is.issue(i.specs[name])
		}
	}
	if len(i.secrets) != 2*len(inv.Supervisors) {
		t.Fatalf("%d Certificates for %d supervisors: want two for each", len(i.secrets), len(inv.Supervisors))
	}
	gossip, err := os.ReadFile(filepath.Join(hall, "gossip.key"))
	if err != nil {
		t.Fatal(err)
	}
	i.secrets["lofamo-gossip"] = map[string][]byte{"gossip.key": gossip}
	for _, s := range inv.Supervisors {
		i.keys[s.ID] = pods(t, find(t, all, "Deployment", "lofamo-supervisor-keys-"+s.ID))
		i.secret[s.ID], i.data[s.ID], i.etc[s.ID] = t.TempDir(), t.TempDir(), t.TempDir()
	}
	i.project("..2026_01")
	for n, s := range inv.Supervisors {
		for _, p := range i.steps(s.ID) {
			if _, err := inv.PlaceSupervisor(n, p); err != nil {
				t.Fatal(err)
			}
		}
	}
	return i
}

// steps returns both copies of a replica's keys: from the Secret to its volume, and from there to the directory that it
// reads.
func (i *issued) steps(id string) []inventory.Placement {
	kept := filepath.Join(i.data[id], "keys")
	return []inventory.Placement{{Keys: i.secret[id], Etc: kept}, {Keys: kept, Etc: i.etc[id]}}
}

// project updates the volumes of the pods that bring keys from the current Secrets.
func (i *issued) project(version string) {
	i.t.Helper()
	for id, spec := range i.keys {
		out := map[string][]byte{}
		volumes := list(spec, "volumes")
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
		project(i.t, i.secret[id], version, out)
	}
}

func (i *issued) in(id, name string) string { return filepath.Join(i.etc[id], "pki", name) }

// renew does one run of each container that brings renewed keys to s1.
func (i *issued) renew() (renewed bool, err error) {
	for _, p := range i.steps("s1") {
		if renewed, err = i.inv.Renew(0, p); err != nil {
			return renewed, err
		}
	}
	return renewed, nil
}

// TestCertificatesOfCertManagerAreValid: the certificates that cert-manager issues for the chart's Certificates are valid for supervisors,
// and running processes present renewed ones and sign with them.
func TestCertificatesOfCertManagerAreValid(t *testing.T) {
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
		{i.is.issue(with(i.specs[s1], "ECDSA")), "want Ed25519"},
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

// TestRenewedKeysReachReplica: the containers that bring renewed keys, with their arguments and mounts, copy them from the
// Secret to the replica. The first one logs each refusal once. All end with success.
func TestRenewedKeysReachReplica(t *testing.T) {
	t.Parallel()
	i := newIssued(t)
	mounts := map[string]string{"data": i.data["s1"], "etc": i.etc["s1"], "keys": i.secret["s1"],
		"inventory": filepath.Join(root, "deploy", "examples")}
	first := i.follow(i.keys["s1"], "follow", mounts)
	good := i.is.issue(i.specs[s1])
	i.secrets[s1] = i.is.issue(i.specs["lofamo-supervisor-s2"])
	i.project("..2026_02")
	first.hears("want lofamo://hall7/supervisor/s1")
	i.secrets[s1] = good
	i.project("..2026_03")
	first.hears("the certificate of s1 was renewed")
	// It begins only now. Earlier, between the copies of a certificate and of its key, it would report a pair that does not match.
	second := i.follow(i.pod, "keys", mounts)
	second.hears("the certificate of s1 was renewed")
	if !bytes.Equal(i.read("supervisor.pem"), good["tls.crt"]) || !bytes.Equal(i.read("supervisor.key"), good["tls.key"]) {
		t.Error("etc lacks the keys of the Secret")
	}
	second.ends()
	// The replica loses its volume, all files at once: the container would report a half-removed directory as an error.
	if err := os.Rename(filepath.Join(i.data["s1"], "keys"), filepath.Join(i.t.TempDir(), "lost")); err != nil {
		t.Fatal(err)
	}
	first.hears("the certificate of s1 was renewed")
	gossip := i.secrets["lofamo-gossip"]["gossip.key"]
	if b, err := os.ReadFile(filepath.Join(i.data["s1"], "keys", "gossip.key")); err != nil || !bytes.Equal(b, gossip) {
		t.Errorf("gossip.key after a loss of the volume: %q, %v", b, err)
	}
	first.ends()
}

// follower is a running container that brings renewed keys.
type follower struct {
	t     *testing.T
	stop  context.CancelFunc
	lines *bufio.Scanner
	ended chan int
}

// follow runs a container of a pod with its arguments, every second instead of every minute.
func (i *issued) follow(spec object, name string, mounts map[string]string) *follower {
	i.t.Helper()
	containers := list(spec, "containers")
	c := containers[slices.IndexFunc(containers, func(c object) bool { return c.text("name") == name })]
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
	ctx, cancel := context.WithTimeout(i.t.Context(), 4*bound)
	i.t.Cleanup(cancel)
	said, out := io.Pipe()
	i.t.Cleanup(func() { _ = said.Close() })
	f := &follower{i.t, cancel, bufio.NewScanner(said), make(chan int, 1)}
	go func() {
		f.ended <- ctl.Run(ctx, args, command.Env{Stdout: out, Stderr: out, Getenv: func(string) string { return "" }})
		_ = out.Close()
	}()
	return f
}

func (f *follower) hears(want string) {
	f.t.Helper()
	if !f.lines.Scan() || !strings.Contains(f.lines.Text(), want) {
		f.t.Fatalf("it says %q, %v: want %q", f.lines.Text(), f.lines.Err(), want)
	}
}

func (f *follower) ends() {
	f.t.Helper()
	f.stop()
	if f.lines.Scan() {
		f.t.Errorf("it says %q at its end", f.lines.Text())
	}
	if code := <-f.ended; code != 0 {
		f.t.Errorf("it ends with %d", code)
	}
}

// with returns a Certificate's spec with another key algorithm.
func with(spec object, algorithm string) object {
	out := object{}
	maps.Copy(out, spec)
	out["privateKey"] = map[string]any{"algorithm": algorithm, "encoding": "PKCS8"}
	return out
}

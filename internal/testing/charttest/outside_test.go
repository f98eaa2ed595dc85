package charttest

import (
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
)

// onlyLong skips a test that does not belong to every run.
func onlyLong(t *testing.T) {
	t.Helper()
	if os.Getenv(long) == "" {
		t.Skipf("only with %s", long)
	}
}

// outside starts an etcd that accepts certificates of the cluster's authority, as an administrator would. The chart is
// not involved.
func outside(t *testing.T, hall string, ip netip.Addr) (endpoint string) {
	t.Helper()
	dir := t.TempDir()
	secret := newIssuer(t, hall).issue(object{
		"duration": "1h", "usages": []any{"digital signature", "client auth",
			"server auth"}, "ipAddresses": []any{ip.String()}, "dnsNames": []any{"localhost"},
		"privateKey": map[string]any{"algorithm": "ECDSA", "encoding": "PKCS8"},
	})
	for name, b := range secret {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cfg := embed.NewConfig()
	cfg.Name, cfg.Dir, cfg.LogLevel = "outside", filepath.Join(dir, "data"), "fatal"
	at := func(port uint16) []url.URL {
		return []url.URL{{Scheme: "https", Host: netip.AddrPortFrom(ip, port).String()}}
	}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = at(12379), at(12379)
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = at(12380), at(12380)
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	tls := transport.TLSInfo{CertFile: filepath.Join(dir, "tls.crt"), KeyFile: filepath.Join(dir, "tls.key"),
		TrustedCAFile: filepath.Join(dir, "ca.crt"), ClientCertAuth: true}
	cfg.ClientTLSInfo, cfg.PeerTLSInfo = tls, tls
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	select {
	case <-e.Server.ReadyNotify():
	case <-time.After(bound):
		t.Fatal("etcd is not ready in time")
	}
	return cfg.ListenClientUrls[0].String()
}

// TestSupervisorsUseExternalEtcd: supervisors use an external etcd, as the chart's value says, and a restarted replica finds the state
// there.
func TestSupervisorsUseExternalEtcd(t *testing.T) {
	onlyLong(t)
	in := install(t)
	in.values = append(in.values, "--set", "supervisors.etcd.endpoints[0]="+outside(t, in.hall, in.machines[0].ip))
	in.begin()
	for i, m := range in.machines {
		if _, err := os.Stat(filepath.Join(m.dir, "var", "lib", "lofamo", "supervisor", "store", "etcd")); !os.IsNotExist(err) {
			t.Errorf("supervisor %d has an etcd of its own: %v", i, err)
		}
	}
	in.roll("again", in.now)
	in.normal()
	in.spared("a restart of all supervisors")
}

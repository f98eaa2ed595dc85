// Package kubetest runs a real Kubernetes for tests and benchmarks. Start runs an API server on an etcd, with RBAC, and without
// kubelets and schedulers, whose work the test does itself; of the controllers it can run the one that judges nodes.
// StartCluster runs everything, with kubelets that start containers. The package holds no tests; 'make kube' builds the programs.
package kubetest

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/internal/testing/freeport"
)

// Dir is the environment variable with the programs' directory, in place of .tools/kube.
const Dir = "LOFAMO_KUBE_DIR"

// patience bounds the start of a program; the API server takes 4 s.
const patience = 3 * time.Minute

// without are admission plugins that need a controller: for the service accounts of pods, and to remove a taint of new
// nodes.
const without = "ServiceAccount,TaintNodesByCondition"

// ErrMissing is the error for missing programs.
var ErrMissing = errors.New("kube-apiserver, kube-controller-manager, kube-scheduler, kubelet or etcd is missing: run 'make kube' " +
	"(7 to 10 minutes, once)")

// Programs returns the programs' directory.
func Programs() (string, error) {
	dirs := []string{os.Getenv(Dir)}
	if dirs[0] == "" {
		wd, err := os.Getwd()
		if err != nil {
			return "", fmt.Errorf("look for kube-apiserver: %w", err)
		}
		dirs = nil
		for d := wd; d != filepath.Dir(d); d = filepath.Dir(d) {
			dirs = append(dirs, filepath.Join(d, ".tools", "kube"))
		}
	}
	for _, d := range dirs {
		if _, err := os.Stat(filepath.Join(d, "etcd")); err == nil {
			if _, err := os.Stat(filepath.Join(d, "kube-apiserver")); err == nil {
				return d, nil
			}
		}
	}
	return "", ErrMissing
}

// Server is an API server that is ready.
type Server struct {
	Addr string // "ip:port"
	// Admin may do everything.
	Admin *Client

	ca    string // path of the certificate of the API server
	token string // of the admin
	etcd  *process
	api   *process
	// controllers judge nodes; nil unless StartNodeLifecycle started them.
	controllers *process
}

// Start begins an etcd and an API server, with all their files in dir, and returns when they are ready.
func Start(dir string) (*Server, error) {
	var addrs []netip.AddrPort
	for range 3 {
		a, err := freeport.Find()
		if err != nil {
			return nil, err
		}
		addrs = append(addrs, a)
	}
	return startAt(dir, plane{host: freeport.IP(), bind: freeport.IP().String(), api: addrs[0], client: addrs[1], peer: addrs[2],
		without: without})
}

// plane has the addresses of an API server and its etcd, and the API server's further settings.
type plane struct {
	host              netip.Addr // as the API server announces it
	bind              string
	api, client, peer netip.AddrPort
	without           string
	more              []string
}

func startAt(dir string, at plane) (*Server, error) {
	programs, err := Programs()
	if err != nil {
		return nil, err
	}
	s := &Server{Addr: at.api.String(), ca: filepath.Join(dir, "pki", "apiserver.crt"), token: rand.Text()}
	key, users := filepath.Join(dir, "sa.key"), filepath.Join(dir, "users.csv")
	if err := writeKey(key); err != nil {
		return nil, err
	}
	if err := os.WriteFile(users, []byte(s.token+",admin,admin,\"system:masters\"\n"), 0o600); err != nil {
		return nil, fmt.Errorf("users of the API server: %w", err)
	}
	client, peer := "http://"+at.client.String(), "http://"+at.peer.String()
	s.etcd, err = start(dir, filepath.Join(programs, "etcd"), "--data-dir", filepath.Join(dir, "etcd"), "--unsafe-no-fsync",
		"--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
		"--initial-cluster", "default="+peer, "--log-level", "warn")
	if err != nil {
		return nil, err
	}
	s.api, err = start(dir, filepath.Join(programs, "kube-apiserver"), append([]string{"--etcd-servers", client, "--bind-address", at.bind,
		"--advertise-address", at.host.String(),
		"--secure-port", fmt.Sprint(at.api.Port()), "--cert-dir", filepath.Dir(s.ca), "--token-auth-file", users, "--authorization-mode", "RBAC",
		"--service-account-key-file", key, "--service-account-signing-key-file", key, "--service-account-issuer",
		"https://kubernetes.default.svc",
		"--service-cluster-ip-range", "10.0.0.0/24", "--disable-admission-plugins", at.without, "--endpoint-reconciler-type", "none"},
		at.more...)...)
	if err == nil {
		err = s.ready()
	}
	if err != nil {
		s.Stop()
		return nil, err
	}
	return s, nil
}

// StartNodeLifecycle starts a controller manager with its node lifecycle controller alone: it judges nodes by their
// Leases and conditions, with Kubernetes' default periods. Its files go to dir.
func (s *Server) StartNodeLifecycle(dir string) error {
	programs, err := Programs()
	if err != nil {
		return err
	}
	program := filepath.Join(programs, "kube-controller-manager")
	if _, err := os.Stat(program); err != nil {
		return ErrMissing
	}
	port, err := freeport.Find()
	if err != nil {
		return err
	}
	conf := filepath.Join(dir, "controllers.kubeconfig")
	if err := s.Kubeconfig(conf, s.Addr, s.token); err != nil {
		return err
	}
	s.controllers, err = start(dir, program, "--kubeconfig", conf, "--authentication-kubeconfig", conf, "--authorization-kubeconfig", conf,
		"--bind-address", port.Addr().String(), "--secure-port", fmt.Sprint(port.Port()), "--cert-dir", filepath.Join(dir, "controllers"),
		"--controllers", "node-lifecycle-controller", "--leader-elect=false", "--use-service-account-credentials=false",
		"--allocate-node-cidrs=false")
	return err
}

// ready waits until the API server is.
func (s *Server) ready() error {
	t := time.NewTicker(50 * time.Millisecond)
	defer t.Stop()
	last := errors.New("no request yet")
	for end := time.Now().Add(patience); time.Now().Before(end); {
		select {
		case <-s.api.ended:
			return s.api.failed("ended")
		case <-s.etcd.ended:
			return s.etcd.failed("ended")
		case <-t.C:
		}
		c, err := s.Client(s.Addr, s.token)
		if err == nil {
			if _, err = c.Do(http.MethodGet, "/readyz", "", nil); err == nil {
				s.Admin = c
				return nil
			}
		}
		last = err
	}
	return s.api.failed(fmt.Sprintf("not ready within %s: %v", patience, last))
}

// Stop ends all, the API server before its etcd: one that has lost its etcd does not end.
func (s *Server) Stop() {
	s.controllers.stop()
	s.api.stop()
	s.etcd.stop()
}

// Token is the admin's.
func (s *Server) Token() string { return s.token }

// CA is the path of the certificate that NewClient checks the API server by.
func (s *Server) CA() string { return s.ca }

// Pause stops the API server, and returns once it stands still: a signal takes time to reach all threads.
func (s *Server) Pause() error {
	if err := s.api.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return fmt.Errorf("pause the API server: %w", err)
	}
	for {
		err := unix.Waitid(unix.P_PID, s.api.cmd.Process.Pid, nil, unix.WSTOPPED|unix.WNOWAIT, nil)
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, unix.EINTR):
			return fmt.Errorf("pause the API server: %w", err)
		}
	}
}

// Continue resumes it.
func (s *Server) Continue() error { return s.api.cmd.Process.Signal(syscall.SIGCONT) }

// Client is one for the API server at addr, which may be that of a proxy before it, as the bearer of a token.
func (s *Server) Client(addr, token string) (*Client, error) { return NewClient(addr, token, s.ca) }

// NewClient is Server.Client for another process: ca is the path of the API server's certificate.
func NewClient(addr, token, ca string) (*Client, error) {
	pemCert, err := os.ReadFile(ca)
	if err != nil {
		return nil, fmt.Errorf("certificate of the API server: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pemCert) {
		return nil, fmt.Errorf("certificate of the API server %s: none is in it", ca)
	}
	return &Client{base: "https://" + addr, token: token, http: &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: pool, ServerName: serverName}, ForceAttemptHTTP2: true, MaxIdleConnsPerHost: 64,
	}}}, nil
}

// serverName is one that the API server's certificate always has.
const serverName = "kubernetes.default.svc"

// Kubeconfig writes one, for addr and token, to path.
func (s *Server) Kubeconfig(path, addr, token string) error {
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://%s", certificate-authority: %q, tls-server-name: %s}}]
users: [{name: u, user: {token: %q}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
current-context: c
`, addr, s.ca, serverName, token)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return fmt.Errorf("kubeconfig: %w", err)
	}
	return nil
}

// writeKey makes the key that signs tokens of service accounts.
func writeKey(path string) error {
	k, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return fmt.Errorf("key of service accounts: %w", err)
	}
	b := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(k)})
	if err := os.WriteFile(path, b, 0o600); err != nil {
		return fmt.Errorf("key of service accounts: %w", err)
	}
	return nil
}

// process is a program that was started.
type process struct {
	cmd   *exec.Cmd
	log   string
	ended chan struct{}
}

// start begins a program, which ends with this one.
func start(dir, program string, args ...string) (*process, error) {
	return startWith(dir, nil, program, args...)
}

// startWith is start with more variables in the environment.
func startWith(dir string, env []string, program string, args ...string) (*process, error) {
	p := &process{log: filepath.Join(dir, filepath.Base(program)+".log"), ended: make(chan struct{})}
	out, err := os.Create(p.log)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", program, err)
	}
	defer func() { _ = out.Close() }()
	p.cmd = exec.Command(program, args...)
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = dir, out, out
	p.cmd.Env = append(os.Environ(), env...)
	// The scheduler shares the processor between sessions: a new one is not slowed by other work of this session.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setsid: true}
	begun := make(chan error)
	go func() {
		// The signal comes when the thread ends that has started it: this one stays.
		runtime.LockOSThread()
		err := p.cmd.Start()
		begun <- err
		if err == nil {
			_ = p.cmd.Wait()
			close(p.ended)
		}
	}()
	if err := <-begun; err != nil {
		return nil, fmt.Errorf("start %s: %w", program, err)
	}
	return p, nil
}

func (p *process) failed(how string) error {
	b, err := os.ReadFile(p.log)
	if err != nil {
		b = []byte(err.Error())
	}
	return fmt.Errorf("%s: %s: %s", filepath.Base(p.cmd.Path), how, b[max(0, len(b)-2000):])
}

// stop kills it: none of its data is kept.
func (p *process) stop() {
	if p == nil {
		return
	}
	_ = p.cmd.Process.Kill()
	<-p.ended
}

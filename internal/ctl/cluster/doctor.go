package cluster

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/internal/ctl/command"
	"github.com/lofamo/lofamo/internal/inventory"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/internal/preflight"
)

// Results of one check.
const (
	checkOK      = "OK"
	checkFailed  = "FAILED"
	checkUnknown = "UNKNOWN"
)

// finding is the result of one check.
type finding struct {
	Check  string `json:"check"`
	Result string `json:"result"`
	Detail string `json:"detail"`
	Remedy string `json:"remedy,omitempty"` // empty if the result is OK
}

// Bounds of the doctor's network checks.
const (
	doctorDial = 3 * time.Second
	doctorUDP  = 500 * time.Millisecond // a machine that rejects a datagram says so within a round trip
	// doctorDatagram is the size of the largest datagrams that agents send in one piece.
	doctorDatagram = 1232
	// doctorExpiry is the time before the end of a certificate at which renewal must have worked.
	doctorExpiry = 48 * time.Hour
)

// doctor makes the checks of one machine.
type doctor struct {
	a        *command.App
	findings []finding
}

func (d *doctor) add(check, result, detail, remedy string) {
	d.findings = append(d.findings, finding{check, result, detail, remedy})
}

// ok adds the result of a check that has an error or none.
func (d *doctor) ok(check string, err error, detail, remedy string) {
	if err != nil {
		d.add(check, checkFailed, err.Error(), remedy)
		return
	}
	d.add(check, checkOK, detail, "")
}

// DoctorCommand returns `lofamoctl doctor`.
func DoctorCommand(a *command.App) *cobra.Command {
	var join []string
	var file, address string
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check this machine: ports, firewalls, clock, disk, rights and certificates",
		Long: `Checks this machine as a node, and prints one line for each check with its remedy. It changes nothing and needs no token.

With --join, it checks a machine before it joins: that the supervisors' ports answer, the clock, the machine's own ports, the disk and the
rights. Without --join, it checks a node by the agent's configuration: also when its certificates end.

UDP: a firewall that rejects datagrams shows as FAILED. One that drops them silently cannot be told from an idle supervisor without the
keys of a node, and is UNKNOWN. On a node, 'lofamo-agent status' shows whether the supervisors' answers arrive.

Exit codes: 0 no check failed, 1 a check failed, 2 a usage error. UNKNOWN is no failure.`,
		Example: "  lofamoctl doctor --join 10.0.0.101,10.0.0.102\n  lofamoctl doctor\n  lofamoctl doctor -o json",
		Args:    command.Exactly(),
	}
	cmd.Flags().StringSliceVar(&join, "join", nil, "before joining: addresses of supervisors, HOST[:PORT],... (default port 7944)")
	cmd.Flags().StringVar(&file, "config", "/etc/lofamo/agent.yaml", "after joining: the agent's configuration")
	cmd.Flags().StringVar(&address, "address", "", "with --join: IP of this machine (default: that from which it reaches a supervisor)")
	o := command.AddOutputFlag(cmd, command.FormatTable, command.FormatJSON, command.FormatYAML)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		d := &doctor{a: a}
		switch {
		case len(join) > 0 && cmd.Flags().Changed("config"):
			return command.Usagef("--join and --config: want only one, a machine joins or has joined")
		case address != "" && len(join) == 0:
			return command.Usagef("--address %s: goes with --join, which is missing", address)
		}
		var err error
		if len(join) > 0 {
			err = d.before(cmd.Context(), join, address)
		} else {
			err = d.after(cmd.Context(), file)
		}
		if err != nil {
			return err
		}
		return d.report(o)
	}
	return cmd
}

// report prints the findings. Its error says how many failed.
func (d *doctor) report(o *command.OutputFlag) error {
	failed := 0
	rows := [][]string{{"CHECK", "RESULT", "FOUND", "REMEDY"}}
	for _, f := range d.findings {
		if f.Result == checkFailed {
			failed++
		}
		rows = append(rows, []string{f.Check, f.Result, f.Detail, command.Dash(f.Remedy)})
	}
	if o.Format.Structured() {
		b, err := json.Marshal(map[string][]finding{"checks": d.findings})
		if err == nil {
			err = d.a.PrintJSON(o.Format, b)
		}
		if err != nil {
			return err
		}
	} else if err := command.Table(d.a.Env.Stdout, rows); err != nil { // whole: a remedy that is cut helps nobody
		return err
	}
	if failed > 0 {
		return fmt.Errorf("doctor: %d of %d checks failed", failed, len(d.findings))
	}
	return nil
}

// before checks a machine that wants to join.
func (d *doctor) before(ctx context.Context, join []string, address string) error {
	cfg := config.DefaultAgent()
	var at netip.Addr
	if address != "" {
		var err error
		if at, err = netip.ParseAddr(address); err != nil || at.IsUnspecified() {
			return command.Usagef("--address %q: want the IP of this machine", address)
		}
	}
	for _, s := range join {
		s = config.WithEnrolmentPort(s)
		host, port, err := net.SplitHostPort(s)
		if n, bad := strconv.ParseUint(port, 10, 16); err != nil || bad != nil || n == 0 || host == "" {
			return command.Usagef("--join %q: want HOST or HOST:PORT, port 1 to 65535", s)
		}
		d.enrolment(ctx, s)
		d.clock(ctx, net.JoinHostPort(host, strconv.Itoa(inventory.DefaultPorts().HTTP)))
		d.udp(ctx, "reports", net.JoinHostPort(host, strconv.Itoa(inventory.DefaultPorts().Report)))
		if c, err := (&net.Dialer{}).DialContext(ctx, "udp", s); err == nil { // sends nothing
			if local, err := netip.ParseAddrPort(c.LocalAddr().String()); err == nil && !at.IsValid() {
				at = local.Addr().Unmap()
			}
			_ = c.Close()
		}
	}
	if at.IsValid() {
		cfg = cfg.With(config.Joined{Address: at.WithZone("")})
		d.ok("own ports", preflight.Ports(cfg), "UDP "+cfg.Service.Listen+" and those of the links are free", "")
	} else {
		d.add("own ports", checkUnknown, "no supervisor can be reached, so this machine's address is unknown", "give --address")
	}
	d.local(cfg)
	return nil
}

// after checks a node by the agent's configuration.
func (d *doctor) after(ctx context.Context, file string) error {
	cfg, err := config.ReadAgent(file, nil)
	if err != nil {
		return command.Usage(fmt.Errorf("--config: %w: before this machine joins, give --join", err))
	}
	if cfg.Join.Given() {
		joined := filepath.Join(cfg.StateDir, config.JoinedDir, config.JoinedAgent)
		for _, s := range cfg.Join.Supervisors {
			d.enrolment(ctx, s)
		}
		if cfg, err = config.ReadAgent(joined, nil); errors.Is(err, fs.ErrNotExist) {
			return command.Usagef("--config %s: the node has not enrolled yet (%s does not exist): give --join", file, joined)
		} else if err != nil {
			return fmt.Errorf("--config: %w", err)
		}
	}
	for _, s := range cfg.Supervisors {
		d.udp(ctx, "reports", s.Report)
		if host, _, err := net.SplitHostPort(s.Report); err == nil {
			d.clock(ctx, net.JoinHostPort(host, strconv.Itoa(inventory.DefaultPorts().HTTP)))
		}
	}
	d.rails(ctx, string(cfg.Node))
	for _, cert := range []string{cfg.TLS.HostCert, cfg.TLS.DNPCert} {
		if cert != "" {
			d.certificate(cert)
		}
	}
	d.local(cfg)
	return nil
}

// enrolment checks the TCP port at which nodes enrol, and the period of the supervisor's certificate by this machine's clock.
func (d *doctor) enrolment(ctx context.Context, address string) {
	ctx, cancel := context.WithTimeout(ctx, doctorDial)
	defer cancel()
	check := "TCP " + address + ", from here"
	raw, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		_, port, _ := net.SplitHostPort(address)
		d.add(check, checkFailed, err.Error(), "let a supervisor with enrolment run there, and open TCP "+port+" from this machine to it")
		return
	}
	defer func() { _ = raw.Close() }()
	//nolint:gosec // it sends nothing: it reads the period of the certificate only
	conn := tls.Client(raw, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"}})
	if err := conn.HandshakeContext(ctx); err != nil {
		d.add(check, checkFailed, "no TLS: "+err.Error(), "give the supervisors' port for enrolment")
		return
	}
	d.add(check, checkOK, "answers", "")
	d.period("certificate of "+address, conn.ConnectionState().PeerCertificates[0], "set this machine's clock, or look at the supervisor's "+
		"certificates (lofamoctl cert list)")
}

// period checks that a certificate is valid by this machine's clock.
func (d *doctor) period(check string, c *x509.Certificate, remedy string) {
	now, stamp := d.a.Env.Now(), func(t time.Time) string { return t.UTC().Format(time.RFC3339) }
	switch {
	case now.Before(c.NotBefore):
		d.add(check, checkFailed, fmt.Sprintf("begins at %s, and this machine's clock shows %s", stamp(c.NotBefore), stamp(now)), remedy)
	case now.After(c.NotAfter):
		d.add(check, checkFailed, fmt.Sprintf("ended at %s, and this machine's clock shows %s", stamp(c.NotAfter), stamp(now)), remedy)
	case c.NotAfter.Sub(now) < min(doctorExpiry, c.NotAfter.Sub(c.NotBefore)/10):
		d.add(check, checkFailed, "ends at "+stamp(c.NotAfter)+" and was not renewed", remedy)
	default:
		d.add(check, checkOK, "ends at "+stamp(c.NotAfter), "")
	}
}

// certificate checks one of the node's own certificates.
func (d *doctor) certificate(file string) {
	const remedy = "let the agent run with a supervisor in reach, which renews it; after its end, enrol again with a token"
	b, err := config.ReadBounded(file, config.MaxFile)
	if errors.Is(err, fs.ErrPermission) {
		d.add("certificate "+file, checkUnknown, err.Error(), "run this as root or as the agent's user")
		return
	}
	var c *x509.Certificate
	if err == nil {
		if block, _ := pem.Decode(b); block == nil {
			err = errors.New("is no PEM file")
		} else {
			c, err = x509.ParseCertificate(block.Bytes)
		}
	}
	if err != nil {
		d.add("certificate "+file, checkFailed, err.Error(), remedy)
		return
	}
	d.period("certificate "+file, c, remedy)
}

// clock compares this machine's clock with that of a supervisor, whose health page states the time in seconds.
func (d *doctor) clock(ctx context.Context, address string) {
	ctx, cancel := context.WithTimeout(ctx, doctorDial)
	defer cancel()
	check := "clock of " + address
	const remedy = "open TCP 7947 from this machine, or compare the clocks by hand (date -u)"
	req, err := http.NewRequestWithContext(ctx, http.MethodHead, "http://"+address+"/", nil)
	if err != nil {
		d.add(check, checkUnknown, err.Error(), remedy)
		return
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}} // without a proxy
	resp, err := client.Do(req)
	if err != nil {
		d.add(check, checkUnknown, err.Error(), remedy)
		return
	}
	_ = resp.Body.Close()
	theirs, err := http.ParseTime(resp.Header.Get("Date"))
	if err != nil {
		d.add(check, checkUnknown, "the answer has no time", remedy)
		return
	}
	off := d.a.Env.Now().Sub(theirs)
	detail := fmt.Sprintf("offset %s, at most %v", off.Round(time.Second), pki.EnrolClocks)
	if off.Abs() > pki.EnrolClocks {
		d.add(check, checkFailed, detail, "set the clocks of both machines, for example by NTP")
		return
	}
	d.add(check, checkOK, detail, "")
}

// udp sends a datagram of the largest size to a port of a supervisor, which answers strangers nothing.
func (d *doctor) udp(ctx context.Context, what, address string) {
	check := "UDP " + address + " (" + what + "), from here"
	err := sendUDP(ctx, address)
	_, port, _ := net.SplitHostPort(address)
	remedy := "open UDP " + port + " from this machine to the supervisor, and UDP " + strconv.Itoa(config.PortService) + " back"
	switch {
	case err == nil:
		d.add(check, checkUnknown, fmt.Sprintf("a datagram of %d bytes was sent, and nothing rejected it", doctorDatagram),
			"once the agent runs, 'lofamo-agent status' shows whether answers arrive; if not: "+remedy)
	case errors.Is(err, syscall.ECONNREFUSED):
		d.add(check, checkFailed, "rejected: no supervisor listens there, or a firewall rejects it", "start the supervisor; "+remedy)
	case errors.Is(err, syscall.EPERM), errors.Is(err, syscall.EACCES):
		d.add(check, checkFailed, "this machine's own firewall drops it: "+err.Error(), "let UDP "+port+" leave this machine")
	case errors.Is(err, syscall.EMSGSIZE):
		d.add(check, checkFailed, fmt.Sprintf("the path takes no datagram of %d bytes", doctorDatagram), "raise the MTU to 1280 or more")
	default:
		d.add(check, checkFailed, err.Error(), remedy)
	}
}

// rails asks the supervisors whether the node's reports and their answers pass directly, as the agent itself measures.
func (d *doctor) rails(ctx context.Context, node string) {
	const remedy = "choose a context (lofamoctl config), or run 'lofamo-agent status'"
	check := "UDP of node " + node + ", both ways"
	var answer *lofamov1.Node
	err := d.a.WithClient(ctx, func(ctx context.Context, s command.Session) (err error) {
		answer, err = s.GetNode(ctx, node)
		return err
	})
	if err != nil {
		d.add(check, checkUnknown, command.Plain(err).Error(), remedy)
		return
	}
	found := false
	for _, r := range answer.GetDelivery().GetRails() {
		if !strings.HasPrefix(r.GetName(), "direct") {
			continue
		}
		found = true
		name := check + ", rail " + command.Printable(r.GetName())
		switch {
		case answer.GetDeliveryOld():
			d.add(name, checkUnknown, "the node's last account of it is old", remedy)
		case r.GetDown():
			d.add(name, checkFailed, "reports or their answers are lost", "open the supervisors' UDP report port (7945) from this machine, and UDP "+
				strconv.Itoa(config.PortService)+" of this machine from them")
		case r.GetAnswered() == 0:
			d.add(name, checkUnknown, "no report was answered on it yet", remedy)
		default:
			d.add(name, checkOK, fmt.Sprintf("%d reports answered", r.GetAnswered()), "")
		}
	}
	if !found {
		d.add(check, checkUnknown, "the node has not said how its reports fare", remedy)
	}
}

// sendUDP sends a datagram, and returns a rejection that arrives within doctorUDP.
func sendUDP(ctx context.Context, address string) error {
	c, err := (&net.Dialer{Timeout: doctorDial}).DialContext(ctx, "udp", address)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	if _, err := c.Write(make([]byte, doctorDatagram)); err != nil {
		return err
	}
	if err := c.SetReadDeadline(time.Now().Add(doctorUDP)); err != nil {
		return err
	}
	if _, err = c.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	return err
}

// local checks the disk and the rights.
func (d *doctor) local(cfg config.Agent) {
	d.ok("disk", preflight.Room(cfg), "room for "+cfg.StateDir, "")
	dir := cfg.StateDir
	for dir != filepath.Dir(dir) {
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			break
		}
		dir = filepath.Dir(dir)
	}
	err := unix.Access(dir, unix.W_OK|unix.X_OK)
	if err != nil {
		err = fmt.Errorf("user %d may not write %s: %w", os.Geteuid(), dir, err)
	}
	d.ok("rights", err, fmt.Sprintf("user %d may write %s", os.Geteuid(), dir), "run this as root or as the agent's user: "+
		cmp.Or(strings.TrimSpace(cfg.StateDir), "the state directory")+" belongs to it")
}

package cluster

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/ctl/command"
	"github.com/lofamo/lofamo/internal/pki"
)

// WebCommand returns `lofamoctl web`.
func WebCommand(a *command.App) *cobra.Command {
	var as, address string
	var open bool
	cmd := &cobra.Command{
		Use:   "web",
		Short: "Log in to the fault map in the browser",
		Long: `Prints a link that opens the fault map in a browser and logs you in there with the name and role of your certificate.
The link works once, within a minute, at that one supervisor. It is signed with your key, which does not leave this
machine.

It takes the cluster and your keys as every command does: from flags, the environment, a local cluster or the current
context. The supervisors name their pages, and the link leads to the first page that proves to be of the cluster. --address
names the pages instead, for a proxy or a tunnel. If the supervisor shows browsers a self-signed certificate, the browser
warns: compare the printed fingerprint with the one in the browser.`,
		Example: `  lofamoctl web                                a link to the cluster of the current context, or on this machine
  lofamoctl web --context hall8                a link to another cluster
  lofamoctl web --as viewer                    a link to a local cluster that may only read
  lofamoctl web --address 127.0.0.1:9443       a link through a tunnel`,
		Args: command.Exactly(),
	}
	f := cmd.Flags()
	f.StringVar(&as, "as", string(pki.RoleApprover), "in a local cluster: the role to log in with: viewer, operator or approver")
	f.StringVar(&address, "address", "", "addresses of the supervisors' pages, host:port[,host:port…], instead of those that the "+
		"supervisors name")
	f.BoolVar(&open, "open", false, "open it too, with xdg-open")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		access, err := a.Access()
		if err != nil {
			return err
		}
		var site webSite
		if address == "" && access.Server == "" {
			site, err = webHere(a, cmd.Context(), pki.Role(as))
		} else {
			if cmd.Flags().Changed("as") {
				return command.Usagef("--as is for local clusters: elsewhere your certificate names you")
			}
			site, err = webElsewhere(a, cmd.Context(), access, command.SplitList(address))
		}
		if err != nil {
			return err
		}
		token, err := pki.NewWebLogin(site.signer, site.supervisor, a.Env.Now())
		if err != nil {
			return command.Usage(err)
		}
		link := site.url + "/#login=" + token
		a.Printf("%s\n", link)
		a.Warnf("as %s at supervisor %s; the link works once, within %v\n", pki.WebSubject(site.signer.Identity()), site.supervisor,
			pki.WebLoginLife)
		if site.fingerprint != "" {
			a.Warnf("its certificate has the SHA-256 fingerprint %s\n", colons(site.fingerprint))
		}
		if open {
			if err := exec.CommandContext(cmd.Context(), "xdg-open", link).Run(); err != nil {
				return fmt.Errorf("open the browser: %w: open the link yourself", err)
			}
		}
		return nil
	}
	return cmd
}

// webSite is a supervisor's page, with the user who logs in there.
type webSite struct {
	url, supervisor string
	fingerprint     string // of its certificate, in hexadecimal; empty without TLS
	signer          *pki.Signer
}

// webHere finds the page of a local cluster.
func webHere(a *command.App, ctx context.Context, as pki.Role) (webSite, error) {
	if a.CA != "" || a.Cert != "" || a.Key != "" {
		return webSite{}, command.Usagef("--ca, --cert and --key go with --server, --context or --address: give one of these three")
	}
	if !slices.Contains(pki.WebReaders(), as) {
		return webSite{}, command.Usagef("--as %s: want one of %s", as, strings.Trim(fmt.Sprint(pki.WebReaders()), "[]"))
	}
	c, err := a.Local("lofamoctl web without --address")
	if err != nil {
		return webSite{}, err
	}
	var urls []string
	for _, s := range c.Serving(a.Region) {
		if s.Web != "" {
			urls = append(urls, "http://"+s.Web)
		}
	}
	if len(urls) == 0 {
		return webSite{}, fmt.Errorf("the cluster in %s has no page for browsers: it was made by an earlier version, `lofamoctl up "+
			"--force-new` makes another", c.Dir())
	}
	if len(c.Running()) == 0 {
		return webSite{}, fmt.Errorf("the cluster in %s is stopped: `lofamoctl up --dir %s` starts it", c.Dir(), c.Dir())
	}
	return findSite(ctx, urls, c.PKI("ca.pem"), c.PKI(string(as)+".pem"), c.PKI(string(as)+".key"))
}

// webElsewhere finds the page of a cluster elsewhere: at the given addresses or, if there are none, at those that its supervisors name.
func webElsewhere(a *command.App, ctx context.Context, keys command.Access, addresses []string) (webSite, error) {
	if a.Dir != "" || a.Region != "" {
		return webSite{}, command.Usagef("--dir and --region are of local clusters, --address names another one")
	}
	if len(addresses) == 0 {
		pages, err := namedPages(a, ctx)
		if err != nil {
			return webSite{}, err
		}
		return findSite(ctx, pages, keys.CA, keys.Cert, keys.Key)
	}
	for _, f := range []struct{ name, value string }{{"--ca", keys.CA}, {"--cert", keys.Cert}, {"--key", keys.Key}} {
		if f.value == "" {
			return webSite{}, command.Usagef("--address also needs %s", f.name)
		}
	}
	var urls []string
	for _, addr := range addresses {
		if !strings.Contains(addr, "://") {
			addr = "https://" + addr
		}
		urls = append(urls, strings.TrimSuffix(addr, "/"))
	}
	return findSite(ctx, urls, keys.CA, keys.Cert, keys.Key)
}

// namedPages returns the URLs of the pages that the supervisors name, those of reachable supervisors first.
func namedPages(a *command.App, ctx context.Context) ([]string, error) {
	var reached, others []string
	err := a.WithClient(ctx, func(ctx context.Context, s command.Session) error {
		resp, err := s.ListSupervisors(ctx)
		if err != nil {
			return fmt.Errorf("web: %w", command.Plain(err))
		}
		for _, sup := range resp.GetSupervisors() {
			switch {
			case sup.GetWeb() == "":
			case sup.GetState() == lofamov1.State_NORMAL:
				reached = append(reached, sup.GetWeb())
			default:
				others = append(others, sup.GetWeb())
			}
		}
		return nil
	})
	pages := slices.Concat(reached, others)
	if err == nil && len(pages) == 0 {
		err = errors.New("web: no supervisor names a page for browsers: set web.listen and replicas[].web in the configuration of each, or " +
			"give --address")
	}
	return pages, err
}

// siteTime bounds one question to one supervisor.
const siteTime = 3 * time.Second

// findSite takes the first of the pages that proves to be of the cluster.
func findSite(ctx context.Context, urls []string, ca, cert, key string) (webSite, error) {
	signer, err := pki.LoadSigner(cert, key)
	if err != nil {
		return webSite{}, command.Usage(err)
	}
	verify, err := pki.LoadVerifier(ca, signer.Identity().Cluster)
	if err != nil {
		return webSite{}, command.Usage(err)
	}
	var errs []error
	for _, u := range urls {
		site, err := askSite(ctx, u, verify, signer.Identity().Cluster)
		if err == nil {
			site.signer = signer
			return site, nil
		}
		errs = append(errs, fmt.Errorf("%s: %w", u, err))
	}
	return webSite{}, fmt.Errorf("no page answers: %w", errors.Join(errs...))
}

// askSite has a page prove its identity: by a statement, signed with a supervisor's key, about the connection's
// certificate.
func askSite(ctx context.Context, url string, verify *pki.Verifier, cluster string) (webSite, error) {
	ctx, cancel := context.WithTimeout(ctx, siteTime)
	defer cancel()
	tr := &http.Transport{TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS13,
		InsecureSkipVerify: true}} //nolint:gosec // its certificate is compared below
	defer tr.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/api/address", nil)
	if err != nil {
		return webSite{}, command.Usage(err)
	}
	resp, err := (&http.Client{Transport: tr, CheckRedirect: func(*http.Request,
		[]*http.Request) error {
		return http.ErrUseLastResponse
	}}).Do(req)
	if err != nil {
		return webSite{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	var said struct {
		Token string `json:"token"`
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, 2*pki.MaxWebToken)).Decode(&said); err != nil || resp.StatusCode != http.StatusOK {
		return webSite{}, fmt.Errorf("it is no supervisor's page (%s)", resp.Status)
	}
	c, _, err := pki.OpenWeb(verify, cluster, "", said.Token, time.Now(), pki.WebAddress)
	if err != nil {
		return webSite{}, err
	}
	seen := ""
	if resp.TLS != nil {
		sum := sha256.Sum256(resp.TLS.PeerCertificates[0].Raw)
		seen = hex.EncodeToString(sum[:])
	}
	if seen != c.Fingerprint {
		return webSite{}, fmt.Errorf("it shows a certificate with the fingerprint %.16s…, and supervisor %s says that its own is %.16s…: "+
			"somebody stands between", seen, c.Subject, c.Fingerprint)
	}
	_, name, _ := strings.Cut(c.Subject, "/")
	return webSite{url: url, supervisor: name, fingerprint: seen}, nil
}

// colons writes a fingerprint as browsers do.
func colons(hex string) string {
	var b strings.Builder
	for i := 0; i < len(hex); i += 2 {
		if i > 0 {
			b.WriteByte(':')
		}
		b.WriteString(strings.ToUpper(hex[i:min(i+2, len(hex))]))
	}
	return b.String()
}

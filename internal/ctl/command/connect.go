package command

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/client"
	"github.com/lofamo/lofamo/internal/cluster"
	"github.com/lofamo/lofamo/internal/pki"
)

// AddFlags adds the flags of all commands to the root.
func (a *App) AddFlags(cmd *cobra.Command) {
	f := cmd.PersistentFlags()
	f.StringVar(&a.Dir, "dir", "", "directory of the local cluster (default $LOFAMO_DIR, else ./"+cluster.DefaultDir+")")
	f.StringVar(&a.Server, "server", "", "gRPC addresses of supervisors, host:port[,host:port…], instead of a local cluster (default $"+
		envServer+", else the context's)")
	f.StringVar(&a.Context, "context", "", "take address and keys from this context of the configuration file (lofamoctl config)")
	_ = cmd.RegisterFlagCompletionFunc("context", a.CompleteContexts)
	f.StringVar(&a.Region, "region", "", "in a local cluster with regions: use the supervisors of this one, such as region-0, instead of "+
		"their parent")
	f.StringVar(&a.CA, "ca", "", "PEM file of the cluster's certificate authority (default $"+envCA+", else the context's)")
	f.StringVar(&a.Cert, "cert", "", "PEM file of your certificate (default $"+envCert+", else the context's)")
	f.StringVar(&a.Key, "key", "", "PEM file of its key (default $"+envKey+", else the context's)")
}

// ClusterDir returns the directory of the local cluster and the source of that choice.
func (a *App) ClusterDir() (dir, from string) {
	if a.Dir != "" {
		return a.Dir, "--dir"
	}
	if env := a.Env.Getenv(cluster.EnvDir); env != "" {
		return env, "$" + cluster.EnvDir
	}
	return cluster.DefaultDir, fromDefault
}

// fromDefault is the source of the default directory.
const fromDefault = "the default"

// Elsewhere returns the flag that names a cluster elsewhere, or "".
func (a *App) Elsewhere() string {
	switch {
	case a.Server != "":
		return "--server"
	case a.Context != "":
		return "--context"
	}
	return ""
}

// Local finds the local cluster, for commands that work on no other.
func (a *App) Local(what string) (*cluster.Cluster, error) {
	if name := a.Elsewhere(); name != "" {
		return nil, Usagef("%s works only on a local cluster made by `lofamoctl up`: %s names another one", what, name)
	}
	dir, from := a.ClusterDir()
	c, err := cluster.Load(dir)
	if errors.Is(err, cluster.ErrNoCluster) {
		if abs, absErr := filepath.Abs(dir); absErr == nil {
			dir = abs
		}
		return nil, fmt.Errorf("no local cluster in %s (%s): `lofamoctl up` makes one, --dir names another directory, --server or a context "+
			"(lofamoctl config) a cluster elsewhere", dir, from)
	}
	return c, err
}

// Session is a connection and the known facts about its other end.
type Session struct {
	*client.Client
	Cluster *cluster.Cluster // nil for a cluster elsewhere
	Access  Access           // to a cluster elsewhere
}

// AddHint adds a hint to an error of a call.
func (s Session) AddHint(err error) error {
	var none *client.NoAnswerError
	if errors.As(err, &none) && s.Cluster != nil && len(s.Cluster.Running()) == 0 {
		return fmt.Errorf("the cluster in %s is stopped: `lofamoctl up --dir %s` starts it", s.Cluster.Dir(), s.Cluster.Dir())
	}
	return err
}

// Connect finds the supervisors: those of --server, else those of the local cluster.
func (a *App) Connect() (Session, error) { return a.ConnectAs(pki.RoleViewer) }

// ConnectAs is Connect; in a local cluster it takes the certificate of that role.
func (a *App) ConnectAs(role pki.Role) (Session, error) {
	to, err := a.Access()
	if err != nil {
		return Session{}, err
	}
	if to.Server == "" {
		if a.CA != "" || a.Cert != "" || a.Key != "" {
			return Session{}, Usagef("--ca, --cert and --key go with --server, --context or $%s, give one of these three", envServer)
		}
		c, err := a.Local("this command")
		if err != nil {
			return Session{}, err
		}
		cl, err := c.RegionClient(role, a.Region)
		if errors.Is(err, cluster.ErrNoRegion) {
			err = Usage(err)
		}
		return Session{Client: cl, Cluster: c}, err
	}
	if a.Region != "" {
		return Session{}, Usagef("--region %s cannot be used with the supervisors at %s (from --server, --context or $%s): "+
			"--region names a region of a local cluster", a.Region, to.Server, envServer)
	}
	var flags, variables []string
	for _, f := range []struct{ flag, variable, value string }{
		{"--ca", "LOFAMO_CA", to.CA}, {"--cert", "LOFAMO_CERT", to.Cert}, {"--key", "LOFAMO_KEY", to.Key},
	} {
		if f.value == "" {
			flags, variables = append(flags, f.flag), append(variables, f.variable)
		}
	}
	if len(flags) > 0 {
		return Session{}, Usagef("--server also needs %s (or %s)", strings.Join(flags, ", "), strings.Join(variables, ", "))
	}
	tls, err := pki.ClientTLS(to.Cert, to.Key, to.CA, pki.AllowRoles(pki.RoleSupervisor))
	if err != nil {
		return Session{}, Usage(fmt.Errorf("--ca, --cert, --key: %w", err))
	}
	cl, err := client.New(client.Config{Targets: SplitList(to.Server), TLS: tls, TryTimeout: a.Env.TryTimeout})
	if err != nil {
		return Session{}, Usage(fmt.Errorf("--server: %w", err))
	}
	return Session{Client: cl, Access: to}, nil
}

// SplitList splits a list at its commas and drops spaces and empty items.
func SplitList(s string) []string {
	var out []string
	for part := range strings.SplitSeq(s, ",") {
		if part = strings.TrimSpace(part); part != "" {
			out = append(out, part)
		}
	}
	return out
}

// WithClient runs a command that asks the supervisors.
func (a *App) WithClient(ctx context.Context, do func(context.Context, Session) error) error {
	s, err := a.Connect()
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }()
	return s.AddHint(do(ctx, s))
}

// CompleteNodes completes the names of nodes: from the local cluster's file, or by asking.
func (a *App) CompleteNodes(cmd *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
	var names []string
	if to, err := a.Access(); err == nil && to.Server == "" {
		if c, err := a.Local("completion"); err == nil {
			for _, n := range c.Info().All() {
				names = append(names, string(n.ID))
			}
		}
	} else if s, err := a.Connect(); err == nil {
		defer func() { _ = s.Close() }()
		ctx, cancel := context.WithTimeout(cmd.Context(), 2*time.Second)
		defer cancel()
		if resp, err := s.ListNodes(ctx, &lofamov1.ListNodesRequest{}); err == nil {
			for _, n := range resp.GetNodes() {
				names = append(names, n.GetId())
			}
		}
	}
	var out []string
	for _, n := range names {
		if strings.HasPrefix(n, prefix) {
			out = append(out, n)
		}
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

// CompleteContexts completes the name of a context.
func (a *App) CompleteContexts(_ *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
	var out []string
	if c, _, err := a.Contexts(); err == nil {
		for _, x := range c.List {
			if strings.HasPrefix(x.Name, prefix) {
				out = append(out, x.Name)
			}
		}
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

// CompleteFirstNode completes a node as the first argument only.
func (a *App) CompleteFirstNode(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.CompleteNodes(cmd, args, prefix)
}

// Plain strips gRPC's own text from a supervisor's error.
func Plain(err error) error {
	st, ok := status.FromError(err)
	if !ok || st.Code() == codes.OK || st.Code() == codes.Unknown {
		return err
	}
	if st.Code() == codes.InvalidArgument || st.Code() == codes.NotFound {
		return Usage(statusError{st.Message(), err}) // its text names the invalid or missing object
	}
	return statusError{st.Message(), err}
}

// statusError is a supervisor's refusal in its own words.
type statusError struct {
	message string
	cause   error
}

func (e statusError) Error() string { return e.message }

// Unwrap keeps the code to be found.
func (e statusError) Unwrap() error { return e.cause }

// WithApprover runs a command for an approval.
func (a *App) WithApprover(ctx context.Context, do func(context.Context, Session) error) error {
	s, err := a.ConnectAs(pki.RoleApprover)
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }()
	return s.AddHint(do(ctx, s))
}

// WithOperator runs a command that changes something.
func (a *App) WithOperator(ctx context.Context, do func(context.Context, Session) error) error {
	s, err := a.ConnectAs(pki.RoleOperator)
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }()
	return s.AddHint(do(ctx, s))
}

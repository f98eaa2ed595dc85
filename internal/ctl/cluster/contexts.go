package cluster

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lofamo/lofamo/client"
	"github.com/lofamo/lofamo/internal/ctl/command"
	"github.com/lofamo/lofamo/internal/inventory"
	"github.com/lofamo/lofamo/internal/pki"
	"github.com/lofamo/lofamo/pkg/fault"
)

// ConfigCommand returns `lofamoctl config`, which works on the user's configuration file.
func ConfigCommand(a *command.App) *cobra.Command {
	const want = "want get-contexts, current-context, use-context, set-context, delete-context or check"
	cmd := &cobra.Command{
		Use:   "config get-contexts|current-context|use-context|set-context|delete-context|check",
		Short: "Contexts: the clusters that you work on, with their addresses and your keys",
		Long: `Shows and changes the contexts in your configuration file, $XDG_CONFIG_HOME/lofamo/config.yaml, by default
~/.config/lofamo/config.yaml. A context has a name, the addresses of supervisors, and your certificate, its key and
the cluster's authority. 'lofamoctl cluster init' adds one for the operator of the new cluster.

Every command takes the cluster from the first of these that is set:

  1. flags: --server, --ca, --cert and --key; --dir for a local cluster; --context for a context
  2. the environment: LOFAMO_SERVER, LOFAMO_CA, LOFAMO_CERT and LOFAMO_KEY; LOFAMO_DIR for a local cluster
  3. a local cluster of 'lofamoctl up' in ./.lofamo
  4. the current context

Address, authority, certificate and key are looked up one by one: --cert alone replaces the certificate of the
context.`,
		Example: `  lofamoctl config set-context hall7 --server 10.0.0.1:7946,10.0.0.2:7946 \
      --ca hall7/operators/ca.pem --cert hall7/operators/operator.pem --key hall7/operators/operator.key
  lofamoctl config get-contexts
  lofamoctl config use-context hall7
  lofamoctl --context hall8 get nodes`,
		Args: cobra.ArbitraryArgs,
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return command.Usagef("config: %s", want)
			}
			return command.Usagef("config %s: %s", args[0], want)
		},
	}
	cmd.AddCommand(getContextsCommand(a), currentContextCommand(a), useContextCommand(a), setContextCommand(a), deleteContextCommand(a),
		checkContextsCommand(a))
	return cmd
}

func getContextsCommand(a *command.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "get-contexts",
		Short: "All contexts; the current one is marked",
		Args:  command.Exactly(),
	}
	o := command.AddOutputFlag(cmd, command.FormatTable, command.FormatJSON, command.FormatYAML, command.FormatName)
	cmd.RunE = func(*cobra.Command, []string) error {
		c, path, err := a.Contexts()
		if err != nil {
			return err
		}
		switch {
		case o.Format == command.FormatName:
			for _, x := range c.List {
				a.Printf("context/%s\n", x.Name)
			}
			return nil
		case o.Format.Structured():
			c.List = slices.Concat([]command.Context{}, c.List) // a list even if it is empty
			b, err := json.Marshal(struct {
				Current string            `json:"currentContext"`
				List    []command.Context `json:"contexts"`
			}{c.Current, c.List})
			if err != nil {
				return fmt.Errorf("config get-contexts: %w", err)
			}
			return a.PrintJSON(o.Format, b)
		case len(c.List) == 0:
			a.Printf("no context in %s: lofamoctl config set-context makes one\n", command.Dash(path))
			return nil
		}
		rows := [][]string{{"CURRENT", "NAME", "SERVER", "CERT"}}
		for _, x := range c.List {
			mark := ""
			if x.Name == c.Current {
				mark = "*"
			}
			rows = append(rows, []string{mark, x.Name, x.Server, x.Cert})
		}
		return a.Table(rows)
	}
	return cmd
}

func currentContextCommand(a *command.App) *cobra.Command {
	return &cobra.Command{
		Use:   "current-context",
		Short: "The name of the current context",
		Args:  command.Exactly(),
		RunE: func(*cobra.Command, []string) error {
			c, path, err := a.Contexts()
			if err != nil {
				return err
			}
			if c.Current == "" {
				return fmt.Errorf("no context is current in %s: lofamoctl config use-context NAME chooses one", command.Dash(path))
			}
			a.Printf("%s\n", c.Current)
			return nil
		},
	}
}

// namedContext returns all contexts, and the one of that name.
func namedContext(a *command.App, name string) (command.Contexts, command.Context, error) {
	c, path, err := a.Contexts()
	if err != nil {
		return c, command.Context{}, err
	}
	x, ok := c.Find(name)
	if !ok {
		return c, x, c.Unknown("context", name, path)
	}
	return c, x, nil
}

func useContextCommand(a *command.App) *cobra.Command {
	return &cobra.Command{
		Use:               "use-context NAME",
		Short:             "Make a context the current one",
		Args:              command.Exactly("NAME"),
		ValidArgsFunction: a.CompleteContexts,
		RunE: func(_ *cobra.Command, args []string) error {
			unlock, err := a.LockContexts()
			if err != nil {
				return err
			}
			defer unlock()
			c, x, err := namedContext(a, args[0])
			if err != nil {
				return err
			}
			c.Current = x.Name
			path, err := a.SaveContexts(c)
			if err != nil {
				return err
			}
			a.Printf("%s: the current context is %s\n", path, x.Name)
			return nil
		},
	}
}

func setContextCommand(a *command.App) *cobra.Command {
	return &cobra.Command{
		Use:   "set-context NAME --server HOST:PORT[,…] --ca FILE --cert FILE --key FILE",
		Short: "Add a context, or change one",
		Long: `Adds a context, or changes the given values of an existing one. The first context becomes the current one. The command
checks that the files can be read and belong together; it contacts no supervisor.`,
		Example: `  lofamoctl config set-context hall7 --server 10.0.0.1:7946,10.0.0.2:7946 \
      --ca hall7/operators/ca.pem --cert hall7/operators/operator.pem --key hall7/operators/operator.key
  lofamoctl config set-context hall7 --cert me.pem --key me.key`,
		Args:              command.Exactly("NAME"),
		ValidArgsFunction: a.CompleteContexts,
		RunE: func(_ *cobra.Command, args []string) error {
			if a.Context != "" || a.Dir != "" || a.Region != "" {
				return command.Usagef("config set-context: --context, --dir and --region do not belong to a context")
			}
			unlock, err := a.LockContexts()
			if err != nil {
				return err
			}
			defer unlock()
			c, _, err := a.Contexts()
			if err != nil {
				return err
			}
			x, known := c.Find(args[0])
			x.Name = args[0]
			for _, f := range []struct {
				to    *string
				given string
				file  bool
			}{{&x.Server, a.Server, false}, {&x.CA, a.CA, true}, {&x.Cert, a.Cert, true}, {&x.Key, a.Key, true}} {
				if f.given == "" {
					continue
				}
				if *f.to = f.given; f.file {
					if *f.to, err = filepath.Abs(f.given); err != nil {
						return fmt.Errorf("config set-context: %w", err)
					}
				}
			}
			c.Set(x)
			if c.Current == "" {
				c.Current = x.Name
			}
			if err := c.Validate(); err != nil {
				return command.Usage(fmt.Errorf("config set-context: %w", err))
			}
			if err := checkAccess(x.Access()); err != nil {
				return command.Usage(fmt.Errorf("context %s: %w", x.Name, err))
			}
			path, err := a.SaveContexts(c)
			if err != nil {
				return err
			}
			did := map[bool]string{true: "changed", false: "added"}[known]
			a.Printf("%s: context %s %s; the current context is %s\n", path, x.Name, did, c.Current)
			return nil
		},
	}
}

func deleteContextCommand(a *command.App) *cobra.Command {
	return &cobra.Command{
		Use:               "delete-context NAME",
		Short:             "Remove a context; its keys stay",
		Args:              command.Exactly("NAME"),
		ValidArgsFunction: a.CompleteContexts,
		RunE: func(_ *cobra.Command, args []string) error {
			unlock, err := a.LockContexts()
			if err != nil {
				return err
			}
			defer unlock()
			c, x, err := namedContext(a, args[0])
			if err != nil {
				return err
			}
			c.List = slices.DeleteFunc(slices.Clone(c.List), func(o command.Context) bool { return o.Name == x.Name })
			if c.Current == x.Name {
				c.Current = ""
			}
			path, err := a.SaveContexts(c)
			if err != nil {
				return err
			}
			a.Printf("%s: context %s removed; its files stay: %s, %s\n", path, x.Name, x.Cert, x.Key)
			if c.Current == "" && len(c.List) > 0 {
				a.Printf("no context is current: lofamoctl config use-context NAME chooses one\n")
			}
			return nil
		},
	}
}

func checkContextsCommand(a *command.App) *cobra.Command {
	return &cobra.Command{
		Use:   "check [FILE]",
		Short: "Check the configuration file, or FILE, and the files that its contexts name",
		Args:  command.Between(0, "FILE"),
		RunE: func(_ *cobra.Command, args []string) error {
			c, path, err := a.Contexts()
			if len(args) > 0 {
				path = args[0]
				c, err = command.ReadContexts(path)
			}
			if err != nil {
				return command.Usage(err)
			}
			for _, x := range c.List {
				if err := checkAccess(x.Access()); err != nil {
					return command.Usage(fmt.Errorf("%s: context %s: %w", path, x.Name, err))
				}
			}
			a.Printf("%s: good: %s\n", command.Dash(path), fault.Plural(len(c.List), "context"))
			return nil
		},
	}
}

// checkAccess checks the addresses, and that the files can be read and belong together. It asks no supervisor.
func checkAccess(t command.Access) error {
	tls, err := pki.ClientTLS(t.Cert, t.Key, t.CA, pki.AllowRoles(pki.RoleSupervisor))
	if err != nil {
		return fmt.Errorf("ca, cert, key: %w", err)
	}
	c, err := client.New(client.Config{Targets: command.SplitList(t.Server), TLS: tls})
	if err != nil {
		return fmt.Errorf("server: %w", err)
	}
	return c.Close()
}

// writeContext adds a context for the operator of a new cluster, under the cluster's name. It never changes a context or
// the choice of the current one. A failure is a warning, because the cluster's files are complete without a context.
func writeContext(a *command.App, out string, inv inventory.Inventory) {
	unlock, err := a.LockContexts()
	if err != nil {
		a.Warnf("lofamoctl: no context was written: %v\n", err)
		return
	}
	defer unlock()
	c, path, err := a.Contexts()
	if err == nil && path == "" {
		return
	}
	var x command.Context
	if err == nil {
		x, err = operatorContext(out, inv)
	}
	if err != nil {
		a.Warnf("lofamoctl: no context was written: %v\n", err)
		return
	}
	switch old, ok := c.Find(x.Name); {
	case ok && old == x:
		a.Printf("  context %s in %s already names this cluster\n", x.Name, path)
		return
	case ok:
		a.Warnf("lofamoctl: %s has another context %s, for %s with %s: it stays. For this cluster: lofamoctl config set-context NAME "+
			"--server %s --ca %s --cert %s --key %s\n", path, old.Name, old.Server, old.Cert, x.Server, x.CA, x.Cert, x.Key)
		return
	}
	c.Set(x)
	if c.Current == "" {
		c.Current = x.Name
	}
	if path, err = a.SaveContexts(c); err != nil {
		a.Warnf("lofamoctl: no context was written: %v\n", err)
		return
	}
	how := "the current context"
	if c.Current != x.Name {
		how = "lofamoctl config use-context " + x.Name + " makes it the current one"
	}
	a.Printf("  context %s            in %s, for lofamoctl on this machine, as operator: %s\n", x.Name, path, how)
}

// operatorContext returns the context of the operator of a cluster whose files are in the directory.
func operatorContext(out string, inv inventory.Inventory) (command.Context, error) {
	l, err := inv.Layout()
	if err != nil {
		return command.Context{}, err
	}
	dir, err := filepath.Abs(filepath.Join(out, "operators"))
	if err != nil {
		return command.Context{}, err
	}
	var servers []string
	for _, s := range l.Supervisors {
		servers = append(servers, s.GRPC)
	}
	return command.Context{Name: inv.Cluster, Server: strings.Join(servers, ","), CA: filepath.Join(dir, "ca.pem"),
		Cert: filepath.Join(dir, "operator.pem"), Key: filepath.Join(dir, "operator.key")}, nil
}

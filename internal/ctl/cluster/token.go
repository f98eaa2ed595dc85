package cluster

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/ctl/command"
	"github.com/lofamo/lofamo/internal/program"
)

// TokenCommand returns `lofamoctl token`.
func TokenCommand(a *command.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "token create|list|revoke",
		Short: "Create and revoke the tokens with which machines enrol",
		Long: `A token lets a machine without any certificate become a node: 'lofamo-agent run --join ADDRESS --token-file FILE'. It
expires after minutes, and names the cluster's authority, so that the machine recognises the supervisors. Whoever has it can
enrol nodes with the names that it allows. The supervisors keep only its checksum.`,
		Args: cobra.ArbitraryArgs,
		RunE: func(_ *cobra.Command, args []string) error {
			return command.Usagef("token %s: want create, list or revoke", strings.Join(args, " "))
		},
	}
	cmd.AddCommand(tokenCreateCommand(a), tokenListCommand(a), tokenRevokeCommand(a))
	return cmd
}

func tokenCreateCommand(a *command.App) *cobra.Command {
	var ttl time.Duration
	var uses uint32
	var node string
	var names []string
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Make a token, and print it",
		Long: `Makes a token and prints it to standard output. It cannot be shown again.

A token of --node lets that node enrol again, for example after its disk was lost. Any other token is for nodes whose
names are new, and with --names only for those that a pattern fits. Each issue of certificates is a use, also to a
name that has enrolled before; only a repeated request of the same machine, whose answer was lost, is none.

Without --names and --node, responses do not act on the token's nodes until you change their label:
lofamoctl label NODE lofamo.io/managed=true.`,
		Example: `  lofamoctl token create > token
  lofamoctl token create --uses 200 --ttl 1h --names 'gpu-*,n[0-9]*' > token`,
		Args: command.Exactly(),
	}
	f := cmd.Flags()
	program.DurationVar(f, &ttl, "ttl", 10*time.Minute, "lifetime, 1m to 168h")
	f.Uint32Var(&uses, "uses", 1, "number of times that it lets a node in, 1 to 500")
	f.StringVar(&node, "node", "", "the only node that may use it, also if the cluster has it already (default: new ones)")
	f.StringSliceVar(&names, "names", nil, "patterns of the names that new nodes may have, with *, ? and [a-z] as in a shell; at most 16 "+
		"(default: any name)")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if ttl <= 0 {
			return command.Usagef("--ttl %v: want 1m to 168h", ttl)
		}
		if uses == 0 {
			return command.Usagef("--uses 0: want 1 to 500")
		}
		return a.WithOperator(cmd.Context(), func(ctx context.Context, s command.Session) error {
			resp, err := s.CreateToken(ctx, &lofamov1.CreateTokenRequest{Lifetime: durationpb.New(ttl), Uses: uses, Node: node, Names: names})
			if err != nil {
				return fmt.Errorf("create token: %w", command.Plain(err))
			}
			a.Printf("%s\n", resp.GetToken())
			if node == "" && len(names) == 0 {
				a.Warnf("lofamoctl: responses do not act on nodes that enrol with this token, until you name them: " +
					"--names PATTERNS for a new token, or 'lofamoctl label NODE lofamo.io/managed=true' for a node\n")
			}
			return nil
		})
	}
	return cmd
}

func tokenListCommand(a *command.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list",
		Short: "Tokens that have not expired, without their secrets",
		Args:  command.Exactly(),
	}
	o := command.AddOutputFlag(cmd, command.FormatTable, command.FormatJSON, command.FormatYAML)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.WithOperator(cmd.Context(), func(ctx context.Context, s command.Session) error {
			resp, err := s.ListTokens(ctx)
			if err != nil {
				return fmt.Errorf("list tokens: %w", command.Plain(err))
			}
			return command.Show(a, o, resp, func(resp *lofamov1.ListTokensResponse) error {
				rows := [][]string{{"ID", "EXPIRES", "USED", "NAMES", "BY"}}
				for _, t := range resp.GetTokens() {
					names := cmp.Or(t.GetNode(), strings.Join(t.GetNames(), ","), "any")
					rows = append(rows, []string{t.GetId(), "in " + t.GetExpires().AsTime().Sub(a.Env.Now()).Round(time.Second).String(),
						strconv.Itoa(len(t.GetNodes())) + "/" + strconv.Itoa(int(t.GetUses())), names, t.GetBy()})
				}
				return a.Table(rows)
			})
		})
	}
	return cmd
}

func tokenRevokeCommand(a *command.App) *cobra.Command {
	return &cobra.Command{
		Use:     "revoke ID",
		Short:   "Revoke a token; nodes that enrolled with it stay",
		Example: `  lofamoctl token revoke 3kz5ab2c`,
		Args:    command.Exactly("ID (see lofamoctl token list)"),
		RunE: func(cmd *cobra.Command, args []string) error {
			id := strings.TrimPrefix(args[0], "lofamo1.")
			id, _, _ = strings.Cut(id, ".") // the whole token is as good
			return a.WithOperator(cmd.Context(), func(ctx context.Context, s command.Session) error {
				if _, err := s.RevokeToken(ctx, id); err != nil {
					return fmt.Errorf("revoke token %s: %w", id, command.Plain(err))
				}
				a.Printf("token %s revoked\n", id)
				return nil
			})
		},
	}
}

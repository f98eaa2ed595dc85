package federation

import (
	"errors"
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/internal/supervisor/view"
	"github.com/lofamo/lofamo/pkg/awareness"
	"github.com/lofamo/lofamo/pkg/fault"
)

// readable returns an error if a parent cannot show a document of a region. The parent commits every document that it
// accepts, and each later term reads it again: one unreadable document would end every term.
func readable(d *lofamov1.Document) error {
	if d.GetDeleted() && len(d.GetValue()) > 0 {
		return fmt.Errorf("it is deleted and has a value of %d bytes: want none", len(d.GetValue()))
	}
	if what, ok := strings.CutPrefix(d.GetKey(), KindWarnings); ok {
		node, _, _, err := warningKey(what)
		if err == nil && !d.GetDeleted() {
			_, err = decodeWarning(node, d.GetValue())
		}
		return err
	}
	if d.GetDeleted() {
		return nil
	}
	if strings.HasPrefix(d.GetKey(), KindGroups) {
		_, err := decodeGroup(d.GetValue())
		return err
	}
	id, ok := strings.CutPrefix(d.GetKey(), KindNodes)
	if !ok {
		return nil
	}
	n, err := decodeNode("", d.GetValue())
	if err != nil {
		return err
	}
	if n.GetId() != id {
		return fmt.Errorf("it describes node %.80q", n.GetId())
	}
	_, err = view.Restore(n)
	return err
}

func decodeGroup(b []byte) (awareness.GroupStatus, error) {
	g := new(lofamov1.Group)
	if err := proto.Unmarshal(b, g); err != nil {
		return awareness.GroupStatus{}, err
	}
	return view.RestoreGroup(g)
}

func decodeWarning(node fault.NodeID, b []byte) (awareness.WarningStatus, error) {
	w := new(lofamov1.Warning)
	if err := proto.Unmarshal(b, w); err != nil {
		return awareness.WarningStatus{}, err
	}
	return view.RestoreWarning(node, w)
}

// warningKey reads a key of the form NODE/COMPONENT/QUANTITY; a component's name may contain a slash.
func warningKey(what string) (fault.NodeID, fault.Component, fault.Quantity, error) {
	node, rest, _ := strings.Cut(what, "/")
	at := strings.LastIndex(rest, "/")
	if at < 0 {
		return "", 0, 0, errors.New("want NODE/COMPONENT/QUANTITY")
	}
	c, cerr := fault.ParseComponent(rest[:at])
	q, qerr := fault.ParseQuantity(rest[at+1:])
	return fault.NodeID(node), c, q, errors.Join(cerr, qerr)
}

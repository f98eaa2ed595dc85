package program

import (
	"cmp"
	"errors"
	"os"
	"os/user"
	"strconv"
)

// ServiceUser is the user of the packages' services.
const ServiceUser = "lofamo"

// Owner returns the ids of the user who gets a service's files. Without a name that is ServiceUser. If that user does not exist, or the
// caller is not root, the ids are -1: the files stay the caller's.
func Owner(name string) (uid, gid int, err error) {
	u, err := user.Lookup(cmp.Or(name, ServiceUser))
	var unknown user.UnknownUserError
	switch {
	case errors.As(err, &unknown) && name == "", err == nil && name == "" && os.Geteuid() != 0:
		return -1, -1, nil
	case err != nil:
		return 0, 0, err
	}
	if uid, err = strconv.Atoi(u.Uid); err != nil {
		return 0, 0, err
	}
	if gid, err = strconv.Atoi(u.Gid); err != nil {
		return 0, 0, err
	}
	return uid, gid, nil
}

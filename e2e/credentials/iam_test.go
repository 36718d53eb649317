package credentials

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"
)

// iam answers as the parts of AWS's identity service that Vault calls, and remembers who
// there is.
type iam struct {
	url string

	mu    sync.Mutex
	users map[string]string // the access key of each user, empty before there is one
	calls map[string]int
	made  int
	keys  int
}

func startIAM(t *testing.T) *iam {
	t.Helper()
	i := &iam{users: map[string]string{}, calls: map[string]int{}}
	s := httptest.NewServer(i)
	t.Cleanup(s.Close)
	i.url = s.URL
	return i
}

// valid reports whether an access key is somebody's.
func (i *iam) valid(key string) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, k := range i.users {
		if k == key && key != "" {
			return true
		}
	}
	return false
}

// count returns how many users there are, and how many there ever were.
func (i *iam) count() (now, ever int) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return len(i.users), i.made
}

// ServeHTTP implements http.Handler.
func (i *iam) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_ = r.ParseForm()
	action, user := r.Form.Get("Action"), r.Form.Get("UserName")
	i.mu.Lock()
	defer i.mu.Unlock()
	i.calls[action]++
	now := time.Now().UTC().Format(time.RFC3339)
	described := fmt.Sprintf("<User><Path>/</Path><UserName>%[1]s</UserName><UserId>AIDA%[1]s</UserId><Arn>arn:aws:iam::111122223333:user/%[1]s</Arn><CreateDate>%[2]s</CreateDate></User>", user, now)
	_, there := i.users[user]
	var result string
	switch action {
	case "CreateUser":
		i.made++
		i.users[user] = ""
		result = described
	case "GetUser":
		result = described
	case "CreateAccessKey":
		i.keys++
		key := fmt.Sprintf("AKIA%012d", i.keys)
		i.users[user] = key
		result = fmt.Sprintf("<AccessKey><UserName>%s</UserName><AccessKeyId>%s</AccessKeyId><Status>Active</Status><SecretAccessKey>secret-of-%[2]s</SecretAccessKey><CreateDate>%[3]s</CreateDate></AccessKey>", user, key, now)
	case "ListAccessKeys":
		result = "<IsTruncated>false</IsTruncated><AccessKeyMetadata>"
		if key := i.users[user]; key != "" {
			result += fmt.Sprintf("<member><UserName>%s</UserName><AccessKeyId>%s</AccessKeyId><Status>Active</Status><CreateDate>%s</CreateDate></member>", user, key, now)
		}
		result += "</AccessKeyMetadata>"
	case "DeleteAccessKey":
		i.users[user] = ""
	case "DeleteUser":
		delete(i.users, user)
	case "ListAttachedUserPolicies":
		result = "<IsTruncated>false</IsTruncated><AttachedPolicies><member><PolicyName>ReadOnlyAccess</PolicyName><PolicyArn>arn:aws:iam::aws:policy/ReadOnlyAccess</PolicyArn></member></AttachedPolicies>"
	case "ListUserPolicies":
		result = "<IsTruncated>false</IsTruncated><PolicyNames></PolicyNames>"
	case "ListGroupsForUser":
		result = "<IsTruncated>false</IsTruncated><Groups></Groups>"
	case "AttachUserPolicy", "DetachUserPolicy", "PutUserPolicy", "TagUser":
	default:
		http.Error(w, "no such action: "+action, http.StatusBadRequest)
		return
	}
	if action != "CreateUser" && !there && user != "" {
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `<ErrorResponse xmlns="https://iam.amazonaws.com/doc/2010-05-08/"><Error><Type>Sender</Type><Code>NoSuchEntity</Code><Message>no such user</Message></Error></ErrorResponse>`)
		return
	}
	w.Header().Set("Content-Type", "text/xml")
	fmt.Fprintf(w, `<%[1]sResponse xmlns="https://iam.amazonaws.com/doc/2010-05-08/"><%[1]sResult>%[2]s</%[1]sResult><ResponseMetadata><RequestId>r</RequestId></ResponseMetadata></%[1]sResponse>`, action, result)
}

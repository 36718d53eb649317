package source

import "context"

func (o BucketOrigin) openGCS(ctx context.Context) (bucket, error)   { return nil, nil }
func (o BucketOrigin) openAzure(ctx context.Context) (bucket, error) { return nil, nil }

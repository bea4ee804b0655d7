import time
from tests.conftest import *
from tests.api import Api
def test_speed(api, db):
    api.batch(*[{"ref": f"p{n}","job_type":"p"} for n in range(500)], *[{"depends_on": [f"p{n}"]} for n in range(500)])
    jobs=api.claim(max_jobs=1000)["jobs"]
    t=time.time()
    api.settle(*[{"job_id":j["id"],"lease_token":j["lease_token"],"outcome":"complete"} for j in jobs])
    print("settled", time.time()-t)
    wait_until(lambda: api.counts().get("ready")==500)
    print("released", time.time()-t)

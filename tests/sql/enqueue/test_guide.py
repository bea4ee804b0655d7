"""Runs the example of docs/guides/transactional-enqueue.md as the role of a service."""

from tests.api_client import Api
from tests.contract.docs.pages import code, text_of
from tests.database import TestDatabase
from tests.sql.enqueue.conftest import Session

PAGE = "docs/guides/transactional-enqueue.md"


def test_order_and_its_job_commit_or_roll_back_together(shop: Session, api: Api, db: TestDatabase) -> None:
    example, grant = code(PAGE, "sql")
    db.execute(grant)
    shop.execute("CREATE TABLE shop.orders (id int PRIMARY KEY, item text)")
    shipping = Api(api.http, "shipping")
    shop.execute(example.replace("COMMIT;", "ROLLBACK;"))
    assert (shop.value("SELECT count(*) FROM orders"), shipping.claim()["jobs"]) == (0, [])
    shop.execute(example)
    job = shipping.claim_one()
    assert (shop.value("SELECT count(*) FROM orders"), job["job_type"], job["payload"]) == (
        1,
        "order.ship",
        {"order_id": 17},
    )
    shop.execute("DROP TABLE shop.orders")


def test_guide_names_every_parameter(shop: Session) -> None:
    names = shop.value("SELECT proargnames FROM pg_proc WHERE proname = 'longshore_enqueue_v1'")
    assert [name for name in names if f"`{name}`" not in text_of(PAGE)] == []
